// stillmap migrate receive: waits for a task's memory from another machine, and holds it.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "stillmap/checkpoint/migration/tls.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/task/hold.h"
#include "tools/stillmap/task/migrate_options.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

using migration::step;

struct receive_command {
  std::string at, records, control;
  identity_options who;
  driver_options where;
  double wait = 3600;
  std::uint64_t most_bytes = 0;
  bool json = false;
};

void say(const std::string &line) {
  fmt::print(stderr, "receive: {}\n", line);
}

// What a person who waits wants to know. On a thread of the receiver's.
void tell(step s) {
  switch (s) {
    case step::accepted:
      return say("a task is on its way here");
    case step::reserved:
      return say("its addresses are free here; its pages are made as they come");
    case step::waiting:
      return say("all of it is here; the source decides");
    default:
      return;
  }
}

// Until one is here, or it is told to end; why one does not come is said meanwhile.
outcome<migration::arrived_memory> wait_for_one(migration::receiver &at, const receive_command &o,
                                                const until_told &end) {
  const auto until = std::chrono::steady_clock::now() + milliseconds_of(o.wait);
  std::string said;
  for (;;) {
    auto came = at.receive(std::chrono::milliseconds(200), end.told());
    if (came) return std::move(*came);
    const auto why = at.last_failure();
    const std::string line = why ? why->message() : "";
    if (line != said && !line.empty()) say("the task did not come: " + printable(line));
    said = line;
    if (!came.error().is(errc::busy) || end.told().stop_requested() ||
        std::chrono::steady_clock::now() >= until) {
      return fail(came.error());
    }
  }
}

void print(const receive_command &o, const migration::arrived_memory &m,
           const std::string &control) {
  const checkpoint::memory_layout &l = m.memory.layout();
  if (o.json) {
    json_writer json;
    json.begin_object().field("task", m.task.text()).field("epoch", m.epoch);
    json.begin_object("from").field("where", m.from.where).field("name", m.from.name);
    json.field("fingerprint", m.from.fingerprint).end();
    json.field("bytes", std::uint64_t{l.bytes()});
    blocks_json(json, l);
    fmt::print("{}\n", json.field("control", control).end().text());
  } else {
    fmt::print("task {}, epoch {}, from {}\n{}", m.task.text(), m.epoch, text_of(m.from),
               blocks_table(l));
    fmt::print("stillmap: ok: {} at the addresses that it had; held, to be asked at {}\n",
               human(l.bytes()), control);
  }
  std::fflush(stdout);
}

outcome<exit_status> run_receive(const receive_command &o) {
  auto told = until_told::create();
  if (!told) return tl::unexpected(told.error());
  until_told &end = **told;
  const auto who = load_identity(o.who);
  if (!who) return tl::unexpected(who.error());
  const auto drv = choose_driver(o.where.driver);
  if (!drv) return tl::unexpected(drv.error());
  const auto d = open_device(**drv, o.where.device);
  if (!d) return tl::unexpected(d.error());
  auto at = migration::tls_at(o.at, *who);
  if (!at) return fail(exit_failed, fmt::format("{}: {}", o.at, at.error().message()));
  migration::receive_options how;
  how.records = absolute(o.records);
  how.most_bytes = o.most_bytes;
  how.most_tasks = 1;
  if (!o.json) how.at = tell;
  auto receiver = migration::receiver::start(*d, std::move(*at), how);
  if (!receiver) return fail(receiver.error());
  const auto ours = migration::fingerprint_of(*who);
  say(fmt::format("waiting at {}; our certificate: {}", receiver->where(),
                  ours ? *ours : ours.error().message()));
  auto came = wait_for_one(*receiver, o, end);
  if (!came) return tl::unexpected(came.error());

  control::server_options asked;
  asked.records = how.records;
  asked.id = came->task;
  asked.record = std::make_shared<migration::record_file>(std::move(came->record));
  const std::string control =
      o.control.empty() ? fmt::format("@stillmap-{}", ::getpid()) : o.control;
  // The receiver stays: whoever sent it may have to ask what became of it.
  hold(*d, came->memory, control, std::move(asked), end, [&] { print(o, *came, control); });
  return exit_ok;
}

}  // namespace

void add_migrate_receive(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "receive",
      "Waits for a task's memory from another machine, prints its blocks, and\nholds them until "
      "SIGTERM, SIGINT, the end of a pipe it reads from, or\nuntil they have been handed or "
      "migrated on. It can be asked meanwhile.\nIt takes one task.");
  const auto o = std::make_shared<receive_command>();
  c->add_option("listen", o->at,
                "where to listen: [HOST]:PORT; without HOST at all of its\naddresses, with port 0 "
                "at one that is free")
      ->required()
      ->type_name("ADDRESS");
  add_identity(*c, o->who);
  c->add_option("--records", o->records,
                "a folder for the record of whose the task is, on a disk\nthat outlives this "
                "process")
      ->required()
      ->type_name("DIR");
  c->add_option("--control", o->control, "where to be asked (default: @stillmap-PID)")
      ->type_name("SOCKET");
  add_size(*c, "--most", o->most_bytes, "refuse a larger one (default: what the device has)");
  add_wait_option(*c, o->wait, "how long to wait for a task (default: 3600)");
  c->add_flag("--json", o->json, "the blocks for programs");
  add_driver_options(*c, o->where);
  c->callback([o, &body] {
    check_identity(o->who);
    body = [o] { return run_receive(*o); };
  });
}

}  // namespace stillmap::tool
