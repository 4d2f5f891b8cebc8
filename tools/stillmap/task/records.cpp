// stillmap migrate status and settle: whose a task is, by its records, and what to do about it.
#include <fmt/format.h>

#include <filesystem>

#include "stillmap/checkpoint/migration/tls.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/task/migrate_options.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

using migration::ownership;
using migration::record_seen;

struct status_command {
  std::string place, task;
  bool json = false;
};

struct words {
  std::string means, next;
};

// The first word of a record's peer is where it is found.
std::string place_of(const std::string &peer) {
  return peer.substr(0, peer.find(' '));
}

// "192.0.2.7:4711 name" as "name (192.0.2.7:4711)".
std::string peer_of(const migration::record &r) {
  if (r.peer.empty()) return "the other side";
  const std::string where = place_of(r.peer);
  return text_of(
      migration::peer{where, r.peer.substr(std::min(where.size() + 1, r.peer.size())), {}});
}

words words_of(const migration::record &r, bool held, const std::string &folder) {
  const std::string peer = peer_of(r);
  switch (r.state) {
    case ownership::owner:
      if (held) return {"It is here.", ""};
      // A source has it only while it sends, so nobody need have died.
      return {"It is this machine's. No process is sending it, or was told that it came.",
              r.peer.empty()
                  ? ""
                  : fmt::format("Nothing, if it runs here. If it was on its way here and "
                                "its process died: {} has it\nas soon as it asks. Have a "
                                "receiver listen here, and settle there.",
                                peer)};
    case ownership::running:
      if (held) return {fmt::format("It came here from {}, and a process has it.", peer), ""};
      return {fmt::format("It came here from {}. The process that received it has ended.", peer),
              ""};
    case ownership::intent:
      if (held) {
        return {fmt::format("It is being given to {}, whose record decides.", peer),
                "Ask the process how far it is: stillmap migrate status SOCKET.\nIf it says "
                "undecided: stillmap migrate settle SOCKET"};
      }
      return {fmt::format("UNDECIDED: its process ended while it gave it to {}.\nNobody runs it "
                          "here any more; whether it is there, only that machine can say.",
                          peer),
              fmt::format("Have a receiver listen there, with the records that it had, and:\n"
                          "stillmap migrate settle {} --task {} --to {} --credentials DIR "
                          "--peer-fingerprint HEX",
                          folder, r.task.text(), printable(place_of(r.peer)))};
    case ownership::released:
      return {fmt::format("{} has it.", peer), ""};
    case ownership::refused:
      return {fmt::format("It was on its way here from {} and did not come: it is there.", peer),
              ""};
  }
  return {};
}

std::string indented(const std::string &text, const char *with) {
  std::string out = with;
  for (const char c : text) {
    out += c;
    if (c == '\n') out += with;
  }
  return out;
}

void print(const record_seen &s, const std::string &folder) {
  if (!s.what) {
    fmt::print("task {}\n  {}\n", s.task.text(),
               s.trouble ? s.trouble->message() : "has no record yet");
    return;
  }
  const words w = words_of(*s.what, s.held, folder);
  fmt::print("task {}: {}, epoch {}{}\n{}\n", s.task.text(), name_of(s.what->state), s.what->epoch,
             s.held ? ", held by a process" : "", indented(w.means, "  "));
  if (!w.next.empty()) fmt::print("  What to do:\n{}\n", indented(w.next, "    "));
}

void print_json(const std::vector<record_seen> &all) {
  json_writer json;
  json.begin_object().begin_array("tasks");
  for (const record_seen &s : all) {
    json.begin_object().field("task", s.task.text()).field("held", s.held);
    if (s.what) {
      json.field("state", name_of(s.what->state)).field("epoch", s.what->epoch);
      json.field("peer", s.what->peer).field("session", s.what->session.text());
      json.field("undecided", s.what->state == ownership::intent && !s.held);
    } else {
      json.nothing("state").field("trouble", s.trouble ? s.trouble->message() : "");
    }
    json.end();
  }
  fmt::print("{}\n", json.end().end().text());
}

outcome<exit_status> records_status(const status_command &o) {
  auto all = migration::records_in(o.place);
  if (!all) return fail(all.error());
  if (!o.task.empty()) {
    std::erase_if(*all, [&](const record_seen &s) { return !s.task.text().starts_with(o.task); });
    if (all->empty()) return fail(exit_failed, "no record of a task " + o.task + " in " + o.place);
  }
  exit_status end = exit_ok;
  for (const record_seen &s : *all) {
    if (s.trouble) end = exit_failed;
  }
  if (o.json) {
    print_json(*all);
  } else {
    for (const record_seen &s : *all) print(s, o.place);
    if (all->empty()) fmt::print("no records\n");
  }
  return end;
}

outcome<exit_status> process_status(const status_command &o) {
  const auto s = control::client(o.place).status();
  if (!s) return fail(s.error());
  const control::job_status &job = s->job;
  if (o.json) {
    json_writer json;
    json.begin_object().field("pid", static_cast<int>(s->pid));
    job_json(json, job);
    fmt::print("{}\n", json.end().text());
  } else if (job.what != control::request_kind::migrate) {
    fmt::print("process {}: no migration is under way\n", s->pid);
  } else {
    fmt::print("process {}: {}\n", s->pid, job_text(job));
    fmt::print("  To {}: stillmap migrate {} {}\n",
               job.undecided ? "ask the other side again" : "give it up",
               job.undecided ? "settle" : "abort", o.place);
  }
  return exit_ok;
}

struct settle_command {
  std::string place, to;
  migration::task_id task;
  identity_options who;
  driver_options where;
  double wait = 10;
  bool json = false;
};

// For a process that is gone: anybody on its machine may ask.
outcome<exit_status> settle_record(const settle_command &o) {
  const auto all = migration::records_in(o.place);
  if (!all) return fail(all.error());
  std::string to = o.to;
  for (const record_seen &s : *all) {
    if (s.task == o.task && s.what && to.empty()) to = place_of(s.what->peer);
  }
  if (to.empty()) return fail(exit_usage, "the record says no place: say it by --to");
  const auto who = load_identity(o.who);
  if (!who) return tl::unexpected(who.error());
  auto there = migration::tls_to(to, *who);
  if (!there) return fail(there.error());
  const auto drv = choose_driver(o.where.driver);
  if (!drv) return tl::unexpected(drv.error());
  const auto d = open_device(**drv, o.where.device);
  if (!d) return tl::unexpected(d.error());
  migration::send_options how;
  how.records = absolute(o.place);
  how.task = o.task;
  how.wait = how.settle = milliseconds_of(o.wait);
  control::migrated m;
  m.sent = migration::sender(*d, {}, how).settle(**there);
  m.sent.to.where = to;
  if (m.sent.why) m.why = control::failure(*m.sent.why);
  if (m.sent.why && m.sent.why->is(errc::invalid_argument)) return fail(*m.sent.why);
  using migration::whose;
  if (m.sent.whose == whose::destination && !o.json) {
    fmt::print("stillmap: ok: {} has it, epoch {}\n", printable(to), m.sent.epoch);
    return exit_ok;
  }
  if (m.sent.whose == whose::source && !o.json) {
    fmt::print(
        "stillmap: ok: it never came to {}: it is this machine's, epoch {}; what its "
        "process held went with it\n",
        printable(to), m.sent.epoch);
    return exit_ok;
  }
  return tell_migrated(m, o.place + " --task " + o.task.text() + " ...", o.json, true);
}

outcome<exit_status> run_settle(const settle_command &o) {
  if (std::filesystem::is_directory(o.place)) return settle_record(o);
  const auto m = control::client(o.place).settle();
  if (!m) return fail(m.error());
  return tell_migrated(*m, o.place, o.json, true);
}

}  // namespace

void add_migrate_status(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "status",
      "Whose tasks are, by the records in a folder, whether a process has\nthem, and what to do "
      "where that is open. Of a socket: how far a\nprocess's migration is.");
  const auto o = std::make_shared<status_command>();
  c->add_option("place", o->place, "a folder of records, or where a process can be asked")
      ->required()
      ->type_name("DIR|SOCKET");
  c->add_option("task", o->task, "only this one: its number, or how it begins")->type_name("HEX");
  c->add_flag("--json", o->json, "all of it for programs");
  c->callback([o, &body] {
    body = [o] {
      return std::filesystem::is_directory(o->place) ? records_status(*o) : process_status(*o);
    };
  });
}

void add_migrate_settle(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "settle",
      "Asks the other side what became of a migration that is undecided, and\nputs it on record. "
      "Of a socket: the process asks, and goes on if the\nmemory is its own. Of a folder of "
      "records, where the process is gone:\nthis command asks (needs --task and who we are).");
  const auto o = std::make_shared<settle_command>();
  c->add_option("place", o->place, "where the process can be asked, or a folder of records")
      ->required()
      ->type_name("SOCKET|DIR");
  add_task_id(*c, o->task, "the task's number");
  c->add_option("--to", o->to,
                "where its receiver is found: HOST:PORT (default: what the\nrecord says)")
      ->type_name("ADDRESS");
  add_identity(*c, o->who);
  add_wait_option(*c, o->wait, "how long to ask (default: 10)");
  c->add_flag("--json", o->json, "the result for programs");
  add_driver_options(*c, o->where);
  c->callback([o, &body] {
    const bool folder = std::filesystem::is_directory(o->place);
    if (folder && o->task.is_zero()) {
      throw CLI::ValidationError("--task", "which of the folder's tasks?");
    }
    if (folder) check_identity(o->who);
    if (!folder && (o->who.given() || !o->task.is_zero() || !o->to.empty())) {
      throw CLI::ValidationError("place", "a process knows its task and the other side by itself");
    }
    body = [o] { return run_settle(*o); };
  });
}

}  // namespace stillmap::tool
