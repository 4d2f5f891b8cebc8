// stillmap task migrate status and resolve: the owners of tasks by their records.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "stillmap/checkpoint/migration/tls.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/address.h"
#include "tools/stillmap/task/identity.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

using migration::ownership;
using migration::record_info;

struct advice {
  std::string meaning, next;
};

// The address of a record's peer: its first word.
std::string address_of(const std::string &peer) {
  return peer.substr(0, peer.find(' '));
}

// "192.0.2.7:4711 name" as "name (192.0.2.7:4711)".
std::string peer_of(const migration::record &r) {
  if (r.peer.empty()) return "the other end";
  const std::string address = address_of(r.peer);
  const std::string name = r.peer.substr(std::min(address.size() + 1, r.peer.size()));
  return text_of(migration::peer_identity{address, name, {}});
}

advice advice_of(const migration::record &r, bool locked, const std::string &folder) {
  const std::string peer = peer_of(r);
  switch (r.state) {
    case ownership::owner:
      if (!r.group.id.is_zero()) {
        return {
            fmt::format("Its group has moved without it, because {} ended before it had it.", peer),
            locked ? "Start a receiver there, and: stillmap task migrate resolve SOCKET, which "
                     "sends it "
                     "again"
                   : "Its process has ended, so its memory is lost: restore it from an image."};
      }
      if (locked) return {"A process here owns it.", ""};
      // A source locks its record only while it sends, so its process may well be running.
      return {
          "This machine owns it. No process here is sending or receiving it.",
          r.peer.empty()
              ? ""
              : fmt::format(
                    "Nothing, if it runs here. If it was arriving here and its process ended: {} "
                    "gets it back\nas soon as it asks. Start a receiver here, and resolve there.",
                    peer)};
    case ownership::running:
      return {fmt::format(
                  "It arrived from {}. {}", peer,
                  locked ? "A process here owns it." : "The process that received it has ended."),
              ""};
    case ownership::intent:
      if (locked) {
        return {fmt::format("It is being sent to {}, whose record decides.", peer),
                "Ask the process for its progress: stillmap task migrate status SOCKET\n"
                "If it is in doubt: stillmap task migrate resolve SOCKET"};
      }
      if (!r.group.id.is_zero()) {
        return {
            fmt::format("IN DOUBT: its process ended while it was being sent to {} with a group.\n"
                        "The group's state at {} decides.",
                        peer, printable(r.group.address)),
            fmt::format("Start the receivers there, with the same folders of records, and:\n"
                        "stillmap task migrate resolve {} --task {} --credentials DIR "
                        "--peer-fingerprint HEX",
                        folder, r.task.text())};
      }
      return {fmt::format("IN DOUBT: its process ended while it was being sent to {}.\nIt does not "
                          "run here any more; only that machine knows whether it arrived.",
                          peer),
              fmt::format("Start a receiver there, with the same folder of records, and:\n"
                          "stillmap task migrate resolve {} --task {} --to {} --credentials DIR "
                          "--peer-fingerprint HEX",
                          folder, r.task.text(), printable(address_of(r.peer)))};
    case ownership::released:
      return {fmt::format("{} owns it.", peer), ""};
    case ownership::none:
      if (!r.transfers.empty() && r.transfers.back().state == migration::transfer_state::refused) {
        return {fmt::format("It did not arrive from {}, which still owns it.", peer), ""};
      }
      return {fmt::format("A transfer from {} {}. This machine has never owned the task.", peer,
                          locked ? "is under way" : "began, and did not complete"),
              ""};
  }
  return {};
}

std::string indented(const std::string &text, const std::string &with) {
  return with + join(split(text, '\n'), '\n' + with);
}

void print(const record_info &s, const std::string &folder) {
  if (!s.value) {
    fmt::print("task {}\n  {}\n", s.task.text(),
               s.failure ? printable(s.failure->message()) : "has no record yet");
    return;
  }
  const advice a = advice_of(*s.value, s.locked, folder);
  fmt::print("task {}: {}, epoch {}{}\n{}\n", s.task.text(), name_of(s.value->state),
             s.value->epoch, s.locked ? ", locked by a process" : "", indented(a.meaning, "  "));
  if (!a.next.empty()) fmt::print("  What to do:\n{}\n", indented(a.next, "    "));
}

void print_json(const std::vector<record_info> &all) {
  json_writer json;
  json.begin_object().begin_array("tasks");
  for (const record_info &s : all) {
    json.begin_object().field("task", s.task.text()).field("locked", s.locked);
    if (s.value) {
      json.field("state", name_of(s.value->state)).field("epoch", s.value->epoch);
      json.field("peer", s.value->peer).field("session", s.value->session.text());
      json.field("in_doubt", s.value->state == ownership::intent && !s.locked);
      const migration::group_reference &group = s.value->group;
      group.id.is_zero() ? json.nothing("group") : json.field("group", group.id.text());
      json.field("left_behind", s.value->state == ownership::owner && !group.id.is_zero());
    } else {
      json.nothing("state").field("error", s.failure ? s.failure->message() : "");
    }
    json.end();
  }
  fmt::print("{}", json.end().end().text());
}

outcome<exit_status> records_status(const migrate_status_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(auto all, about(migration::list_records(o.place), o.place));
  if (!o.task.empty()) {
    std::erase_if(all, [&](const record_info &s) { return !s.task.text().starts_with(o.task); });
    if (all.empty()) {
      return fail(exit_not_found,
                  fmt::format("{}: there is no record of a task {}", o.place, o.task));
    }
  }
  if (o.json) {
    print_json(all);
  } else {
    for (const record_info &s : all) print(s, o.place);
    if (all.empty()) fmt::print("{}: no records\n", o.place);
  }
  const bool damaged = std::any_of(all.begin(), all.end(),
                                   [](const record_info &s) { return s.failure.has_value(); });
  return damaged ? exit_failed : exit_ok;
}

outcome<exit_status> process_status(const migrate_status_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto s, about(control::client(o.place).status(), o.place));
  const control::job_status &job = s.job;
  if (o.json) {
    json_writer json;
    json.begin_object().field("pid", s.pid);
    job_json(json, job);
    fmt::print("{}", json.end().text());
  } else if (job.request != control::request_kind::migrate) {
    fmt::print("process {}: no migration is running\n", s.pid);
  } else {
    fmt::print("process {}: {}\n", s.pid, job_text(job));
    fmt::print("  To {}: stillmap task migrate {} {}\n",
               job.in_doubt ? "ask the other end again" : "cancel it",
               job.in_doubt ? "resolve" : "abort", o.place);
  }
  return exit_ok;
}

// The control socket that `place`, which is no folder, means.
outcome<std::string> socket_of(const std::string &place) {
  STILLMAP_ASSIGN_OR_RETURN(std::string socket, resolve_task(place));
  if (socket.starts_with('@')) return socket;
  std::error_code ignored;
  const auto type = std::filesystem::status(socket, ignored).type();
  if (type == std::filesystem::file_type::not_found) {
    return fail(exit_not_found,
                socket + ": there is neither a folder of records nor a socket of this name");
  }
  if (type == std::filesystem::file_type::regular) {
    return fail(exit_not_found, socket + ": it is neither a folder of records nor a socket");
  }
  return socket;
}

// Resolves a task whose process has ended: any process on its machine may ask.
outcome<exit_status> resolve_record(const migrate_resolve_options &o,
                                    const migration::task_id &task) {
  STILLMAP_ASSIGN_OR_RETURN(const auto all, about(migration::list_records(o.place), o.place));
  std::string to = o.to, decider = o.decider;
  migration::group_reference group;
  for (const record_info &s : all) {
    if (s.task != task || !s.value) continue;
    if (to.empty()) to = address_of(s.value->peer);
    group = s.value->group;
    if (decider.empty()) decider = group.address;
  }
  if (to.empty()) {
    return fail(exit_not_found,
                fmt::format("{}: no record of task {} names its receiver: --to is needed", o.place,
                            task.text()));
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto identity, load_identity(o.identity));
  STILLMAP_ASSIGN_OR_RETURN(auto there, about(migration::create_tls_transport(to, identity), to));
  STILLMAP_ASSIGN_OR_RETURN(const auto d, open_device(o.driver));
  migration::send_options options;
  options.records = absolute(o.place);
  options.task = task;
  options.timeout = options.resolve_timeout = milliseconds_of(o.timeout);
  options.certificate_replaced = o.certificate_replaced;
  std::unique_ptr<migration::transport> decides;
  if (!group.id.is_zero()) {
    STILLMAP_ASSIGN_OR_RETURN(decides,
                              about(migration::create_tls_transport(decider, identity), decider));
    options.group = {group.id, decides.get(), decider};
  }
  migration::sent_memory sent = migration::sender(d, {}, options).resolve(*there);
  // Its memory has ended with its process, and its group has moved.
  const bool lost = sent.owner == migration::owner::source && sent.failure &&
                    sent.failure->is(errc::not_supported);
  if (sent.failure && (lost || sent.failure->is(errc::invalid_argument)))
    return fail(sent.failure->about(o.place));
  sent.to.address = to;
  if (o.json || sent.owner == migration::owner::in_doubt) {
    return print_sent(sent, o.place + " --task " + task.text() + " ...", o.json, true);
  }
  if (sent.owner == migration::owner::destination) {
    fmt::print("stillmap: ok: {} owns it, epoch {}\n", printable(to), sent.epoch);
  } else {
    fmt::print(
        "stillmap: ok: it did not arrive at {}: this machine owns it, epoch {}; its memory was "
        "lost with its process\n",
        printable(to), sent.epoch);
  }
  return exit_ok;
}

}  // namespace

outcome<exit_status> run_migrate_status(const migrate_status_options &o) {
  if (std::filesystem::is_directory(o.place)) return records_status(o);
  migrate_status_options one = o;
  STILLMAP_ASSIGN_OR_RETURN(one.place, socket_of(o.place));
  if (!o.task.empty())
    return fail(exit_usage, o.place + ": HEX has an effect only with a folder of records");
  return process_status(one);
}

outcome<exit_status> run_migrate_resolve(const migrate_resolve_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto task, task_id_of(o.id));
  if (std::filesystem::is_directory(o.place)) {
    if (task.is_zero()) return fail(exit_usage, o.place + ": --task is needed for a folder");
    STILLMAP_RETURN_IF_ERROR(check_identity(o.identity));
    return resolve_record(o, task);
  }
  STILLMAP_ASSIGN_OR_RETURN(const std::string socket, socket_of(o.place));
  if (o.identity.given() || !task.is_zero() || !o.to.empty() || !o.decider.empty() ||
      o.certificate_replaced) {
    return fail(exit_usage,
                o.place +
                    ": a process needs neither --task nor --to nor credentials, nor "
                    "--decider and --certificate-replaced: those are for a folder of records");
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto sent, about(control::client(socket).resolve(), socket));
  return print_sent(sent, socket, o.json, true);
}

}  // namespace stillmap::tool
