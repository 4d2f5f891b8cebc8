// stillmap task migrate send and abort.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/migration/tls.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/address.h"
#include "tools/stillmap/task/identity.h"
#include "tools/stillmap/task/migrate_group.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

using migration::step;

// Shows the progress: on a terminal a bar for each round, elsewhere a line for each event.
class send_view {
 public:
  send_view(bool silent, std::chrono::milliseconds max_downtime)
      : silent_(silent), max_downtime_(max_downtime), terminal_(terminal_of(stderr)) {}

  void show(const migration::progress &p) {
    if (silent_) return;
    if (p.stopping && !stopping_) print_expected(p);
    stopping_ = p.stopping;
    if (p.step == step::quiesced) print_changed();
    if (p.round != round_ && p.step < step::quiesced) {
      print_changed();
      bar_.reset();
      round_ = p.round;
      if (!terminal_.tty && round_ == 1) {
        print_line(fmt::format("round 1: {}", format_bytes(p.round_bytes)));
      }
      bar_.emplace(fmt::format("round {}", p.round), p.round_bytes, !terminal_.tty);
    }
    bytes_ = p.round_bytes;
    if (bar_) {
      bar_->expect(bytes_);
      const double downtime = p.expected_downtime.count();
      bar_->update(p.round_sent,
                   downtime > 0 ? fmt::format("downtime now: {}", human_seconds(downtime)) : "");
    }
    if (p.step == last_) return;
    last_ = p.step;
    if (const char *const text = text_of(p.step); text != nullptr) {
      bar_.reset();
      if (!terminal_.tty) print_line(text);
    }
  }

 private:
  void print_expected(const migration::progress &p) {
    if (p.expected_downtime <= max_downtime_) return;
    bar_.reset();
    print_line(
        fmt::format("the task will stand still for about {}, longer than the {} that were asked "
                    "for; {} of it to scan {} for "
                    "changes",
                    human_seconds(p.expected_downtime.count()),
                    human_seconds(std::chrono::duration<double>(max_downtime_).count()),
                    human_seconds(p.expected_scan.count()), format_bytes(p.bytes)));
  }
  // The size of a later round is known when it has ended.
  void print_changed() {
    if (terminal_.tty || round_ <= printed_ || round_ < 2) return;
    printed_ = round_;
    print_line(fmt::format("round {}: {} had changed", round_, format_bytes(bytes_)));
  }
  static const char *text_of(step s) {
    return s == step::prepared          ? "the addresses are free at the destination"
           : s == step::quiesced        ? "the task is stopped"
           : s == step::verified        ? "all memory has arrived, every digest compared"
           : s == step::intent_recorded ? "the intent to give up ownership is on record"
                                        : nullptr;
  }
  static void print_line(const std::string &line) { fmt::print(stderr, "migrate: {}\n", line); }

  const bool silent_;
  const std::chrono::milliseconds max_downtime_;
  const terminal terminal_;
  bool stopping_ = false;
  std::optional<progress> bar_;
  std::size_t round_ = 0, printed_ = 0;
  std::uint64_t bytes_ = 0;  // of the round
  step last_ = step::described;
};

control::migrate_request request_of(const migrate_send_options &o) {
  control::migrate_request r = o.what;
  r.certificate = certificate_file(o.identity);
  r.key = key_file(o.identity);
  r.authorities = absolute(o.identity.authority);
  r.name = o.identity.name;
  r.fingerprints = o.identity.fingerprints;
  r.records = absolute(r.records);
  r.max_downtime = std::chrono::milliseconds(o.max_downtime_ms);
  r.timeout = milliseconds_of(o.timeout);
  if (o.on_no_convergence == "cancel") r.on_no_convergence = migration::no_convergence::cancel;
  return r;
}

error why_not(const moved_task &t) {
  return t.sent ? t.sent->failure.value_or(error{}) : t.sent.error();
}

exit_status print_moved(const std::vector<moved_task> &all, bool json) {
  if (!json) {
    for (const moved_task &t : all) {
      fmt::print("stillmap: ok: {}: now owned by {}; {}, downtime {}{}\n", printable(t.socket),
                 text_of(t.sent->to), format_bytes(t.sent->bytes),
                 human_seconds(t.sent->downtime.count()),
                 t.sent->data_transport.empty()
                     ? ""
                     : "; contents over " + data_transport_of(*t.sent) + ", not encrypted");
    }
    return exit_ok;
  }
  json_writer out;
  out.begin_object().begin_array("tasks");
  for (const moved_task &t : all) {
    out.begin_object().field("socket", t.socket).field("task", t.sent->task.text());
    out.field("owner", "destination").field("epoch", t.sent->epoch).field("to", t.sent->to.address);
    out.field("bytes", t.sent->bytes).field("downtime_seconds", t.sent->downtime.count());
    out.field("data_transport", data_transport_of(*t.sent)).end();
  }
  fmt::print("{}", out.end().end().text());
  return exit_ok;
}

// Whether it stays only because another does.
bool follows_another(const moved_task &t) {
  return t.answered && why_not(t).code == std::errc::operation_canceled;
}

tl::unexpected<failure> fail_group(const moved_group &group) {
  const moved_task *first = nullptr;
  std::vector<std::string> stopped, unknown;
  std::size_t moved = 0;
  for (const moved_task &t : group.tasks) {
    moved += t.has_moved();
    if (t.has_moved()) continue;
    if (first == nullptr || (follows_another(*first) && !follows_another(t))) first = &t;
    if (t.is_in_doubt()) stopped.push_back(printable(t.socket));
    if (!t.is_in_doubt() && group.may_have_moved) unknown.push_back(printable(t.socket));
  }
  failure f = first->answered
                  ? failure(why_not(*first).about(first->socket))
                  : failure(exit_busy, fmt::format("{}: no answer", printable(first->socket)));
  if (stopped.empty() && unknown.empty()) {
    f.line += "; no task has moved, and each that lives continues here";
    return tl::unexpected(std::move(f));
  }
  f.status = exit_in_doubt;
  f.line =
      fmt::format("in doubt: {}; {} of {} tasks have moved", f.line, moved, group.tasks.size());
  if (!stopped.empty()) {
    f.line += fmt::format(
        "; these are stopped, and nothing of them is lost: {}; once their receivers "
        "can answer, for each: stillmap task migrate resolve SOCKET",
        join(stopped, ", "));
  }
  if (!unknown.empty()) {
    f.line += fmt::format(
        "; these have ended, or do not answer: {}; for each that has ended, within a "
        "minute: stillmap task migrate resolve RECORDS --task ID, as stillmap task "
        "migrate status RECORDS says",
        join(unknown, ", "));
  }
  return tl::unexpected(std::move(f));
}

outcome<exit_status> send_each(const migrate_send_options &o) {
  if (o.what.all == !o.what.tags.empty())
    return fail(exit_usage, "either --tag or --all is needed");
  if (!o.id.empty()) return fail(exit_usage, "--task names one task, and --each means several");
  STILLMAP_ASSIGN_OR_RETURN(const auto to, receivers_of(o.what.to));
  STILLMAP_ASSIGN_OR_RETURN(const auto sockets, resolve_tasks(o.task.socket));
  if (to.size() != sockets.size()) {
    return fail(exit_usage,
                fmt::format("{} {} meant, and --to names {}: each needs one of its own",
                            counted(sockets.size(), "task"), sockets.size() == 1 ? "is" : "are",
                            counted(to.size(), "receiver")));
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto identity, load_identity(o.identity));
  STILLMAP_ASSIGN_OR_RETURN(const auto decider,
                            about(migration::create_tls_transport(to[0], identity), to[0]));
  std::vector<group_task> tasks;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    control::migrate_request r = request_of(o);
    r.to = to[i];
    r.decider = to[0];
    tasks.push_back({sockets[i], std::move(r)});
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto all,
                            migrate_group(tasks, *decider, milliseconds_of(o.within), o.json));
  if (!std::all_of(all.tasks.begin(), all.tasks.end(),
                   [](const moved_task &t) { return t.has_moved(); }))
    return fail_group(all);
  return print_moved(all.tasks, o.json);
}

}  // namespace

outcome<exit_status> run_migrate_send(const migrate_send_options &o) {
  STILLMAP_RETURN_IF_ERROR(check_identity(o.identity));
  if (o.each) return send_each(o);
  STILLMAP_ASSIGN_OR_RETURN(const auto id, task_id_of(o.id));
  STILLMAP_RETURN_IF_ERROR(check_tags(o.task, o.what.tags, o.what.all));
  control::migrate_request r = request_of(o);
  r.task = id;
  result<migration::sent_memory> done;
  {
    send_view view(o.json, r.max_downtime);
    done = client_of(o.task).migrate(r, [&](const migration::progress &p) { view.show(p); });
  }
  if (!done) return fail_reaching(r.to, done.error().about(o.task.socket));
  if (done->to.address.empty()) done->to.address = r.to;
  return print_sent(*done, o.task.socket, o.json, false);
}

outcome<exit_status> run_migrate_abort(const task_status_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto what, about(client_of(o.task).abort(), o.task.socket));
  if (o.json) {
    json_writer json;
    fmt::print("{}", json.begin_object().field("cancelled", control::name_of(what)).end().text());
  } else {
    fmt::print("stillmap: ok: {} cancelled; the task continues\n", control::name_of(what));
  }
  return exit_ok;
}

}  // namespace stillmap::tool
