// stillmap task migrate receive: waits for a task's memory from another machine, and holds it.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "stillmap/checkpoint/migration/tls.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/task/data_channels.h"
#include "tools/stillmap/task/hold.h"
#include "tools/stillmap/task/identity.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

using migration::step;

void print_line(const std::string &line) {
  fmt::print(stderr, "receive: {}\n", line);
}

// Called on a thread of the receiver.
void print_step(step s) {
  if (s == step::accepted) print_line("a task is arriving");
  if (s == step::reserved) {
    print_line("its addresses are free here; its pages are created as they arrive");
  }
  if (s == step::awaiting_commit) print_line("all memory has arrived; the source decides");
}

// Waits for a task, until a timeout or a signal, and prints why one did not arrive.
outcome<migration::received_memory> wait_for_task(migration::receiver &at,
                                                  const migrate_receive_options &o,
                                                  const signal_waiter &end) {
  const auto until = std::chrono::steady_clock::now() + milliseconds_of(o.timeout);
  std::string printed;
  for (;;) {
    auto task = at.receive(std::chrono::milliseconds(200), end.token());
    if (task) return std::move(*task);
    const auto why = at.last_failure();
    const std::string line = why ? printable(why->message()) : "";
    if (line != printed && !line.empty()) print_line("the task did not arrive: " + line);
    printed = line;
    if (task.error().is(errc::busy) && std::chrono::steady_clock::now() < until) continue;
    // One may have arrived meanwhile, and its source has given it up.
    at.close();
    if (auto last = at.receive(std::chrono::milliseconds(0))) return std::move(*last);
    return fail(task.error().about(o.address));
  }
}

void print(const migrate_receive_options &o, const migration::received_memory &m,
           const std::string &control) {
  const checkpoint::memory_layout &l = m.memory.layout();
  if (o.json) {
    json_writer json;
    json.begin_object().field("task", m.task.text()).field("epoch", m.epoch);
    json.begin_object("from").field("address", m.from.address).field("name", m.from.name);
    json.field("fingerprint", m.from.fingerprint).end().field("bytes", l.bytes());
    blocks_json(json, l);
    fmt::print("{}", json.field("control", control).end().text());
  } else {
    fmt::print("task {}, epoch {}, from {}\n{}", m.task.text(), m.epoch, text_of(m.from),
               blocks_table(l));
    fmt::print("stillmap: ok: {} at the original addresses; held, control socket {}\n",
               format_bytes(l.bytes()), control);
  }
  std::fflush(stdout);
}

outcome<exit_status> receive_and_hold(const migrate_receive_options &o) {
  STILLMAP_RETURN_IF_ERROR(check_identity(o.identity));
  STILLMAP_RETURN_IF_ERROR(check_save(o.save));
  STILLMAP_ASSIGN_OR_RETURN(auto waiter, signal_waiter::create());
  signal_waiter &end = *waiter;
  STILLMAP_ASSIGN_OR_RETURN(const auto identity, load_identity(o.identity));
  STILLMAP_ASSIGN_OR_RETURN(const auto d, open_device(o.driver));
  STILLMAP_ASSIGN_OR_RETURN(
      auto control,
      reserve_control(
          d, o.control.empty() ? fmt::format("@stillmap-{}.control", ::getpid()) : o.control));
  STILLMAP_ASSIGN_OR_RETURN(auto at,
                            about(migration::create_tls_acceptor(o.address, identity), o.address));
  STILLMAP_ASSIGN_OR_RETURN(auto data, open_ucx(o.ucx));
  migration::receive_options options;
  options.data_acceptor = data.acceptor;
  options.records = absolute(o.records);
  options.max_bytes = o.max_bytes;
  options.max_tasks = 1;
  if (!o.json) options.on_step = print_step;
  STILLMAP_ASSIGN_OR_RETURN(
      auto receiver, about(migration::receiver::create(d, std::move(at), options), o.records));
  const auto fingerprint = migration::fingerprint_of(identity);
  print_line(fmt::format("waiting at {}; our certificate: {}", receiver.address(),
                         fingerprint ? *fingerprint : fingerprint.error().message()));
  if (data.acceptor) {
    print_line(fmt::format("data channels over {} at {}, not encrypted",
                           data.acceptor->transport_name(), data.acceptor->address()));
  }
  STILLMAP_ASSIGN_OR_RETURN(auto task, wait_for_task(receiver, o, end));

  hold_options held;
  held.server.data_connector = std::move(data.connector);
  held.server.records = options.records;
  held.server.id = task.task;
  held.server.record = std::make_shared<migration::record_file>(std::move(task.record));
  held.save = o.save;
  held.ready = [&](const std::string &at_address) { print(o, task, at_address); };
  // The receiver keeps running: the source may have to ask for the outcome.
  return hold(d, task.memory, std::move(control), std::move(held), end);
}

}  // namespace

outcome<exit_status> run_migrate_receive(const migrate_receive_options &o) {
  return nothing_to_save_is_ok(receive_and_hold(o), o.save);
}

}  // namespace stillmap::tool
