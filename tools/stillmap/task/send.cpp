// stillmap migrate send and abort: of a process that can be asked.
#include <fmt/format.h>

#include <optional>

#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/task/migrate_options.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

using migration::step;

struct send_command {
  std::string socket;
  control::migrate_request what;
  identity_options who;
  double wait = 10;
  int pause = static_cast<int>(control::migrate_request().pause.count());
  bool all = false, give_up = false, json = false;
};

// A bar for each round on a terminal, and elsewhere a line for what is new.
class send_view {
 public:
  explicit send_view(bool silent) : silent_(silent), terminal_(terminal_of(stderr)) {}

  void show(const migration::progress &p) {
    if (silent_) return;
    if (p.at == step::quiet) say_what_changed();
    if (p.round != round_ && p.at < step::quiet) {
      say_what_changed();
      bar_.reset();
      round_ = p.round;
      if (!terminal_.tty && round_ == 1) say(fmt::format("round 1: {}", human(p.round_bytes)));
      bar_.emplace(fmt::format("round {}", p.round), p.round_bytes, !terminal_.tty);
    }
    bytes_ = p.round_bytes;
    if (bar_) {
      bar_->expect(bytes_);
      const auto pause = fmt::format("a pause now: {}", human_seconds(p.expected_pause));
      bar_->update(p.round_sent, p.expected_pause > 0 ? pause : std::string());
    }
    if (p.at == last_) return;
    last_ = p.at;
    if (const char *const words = words_of(p.at); words != nullptr) {
      bar_.reset();
      if (!terminal_.tty) say(words);
    }
  }

 private:
  // Of later rounds that is known when they are over.
  void say_what_changed() {
    if (terminal_.tty || round_ <= said_ || round_ < 2) return;
    said_ = round_;
    say(fmt::format("round {}: {} had changed", round_, human(bytes_)));
  }
  static const char *words_of(step s) {
    switch (s) {
      case step::prepared:
        return "the addresses are free there";
      case step::quiet:
        return "the task stands still";
      case step::verified:
        return "all is there, every digest compared";
      case step::intent:
        return "on record that it is given away";
      default:
        return nullptr;
    }
  }
  static void say(const std::string &line) { fmt::print(stderr, "migrate: {}\n", line); }

  const bool silent_;
  const terminal terminal_;
  std::optional<progress> bar_;
  std::size_t round_ = 0, said_ = 0;
  std::uint64_t bytes_ = 0;  // of the round
  step last_ = step::described;
};

outcome<exit_status> run_send(const send_command &o) {
  const control::client ask(o.socket);
  control::migrate_request r = o.what;
  auto tags = tags_of(ask, r.tags, o.all);
  if (!tags) return tl::unexpected(tags.error());
  r.tags = std::move(*tags);
  r.certificate = o.who.certificate_file();
  r.key = o.who.key_file();
  r.authorities = absolute(o.who.authority);
  r.name = o.who.name;
  r.fingerprints = o.who.fingerprints;
  r.records = absolute(r.records);
  r.pause = std::chrono::milliseconds(o.pause);
  r.wait = milliseconds_of(o.wait);
  if (o.give_up) r.otherwise = migration::when_it_does_not_converge::give_up;
  control::outcome<control::migrated> done;
  {
    send_view view(o.json);
    done = ask.migrate(r, [&](const migration::progress &p) {
      view.show(p);
      return true;
    });
  }
  if (!done) return fail_reaching(r.to, done.error());
  return tell_migrated(*done, o.socket, o.json, false);
}

outcome<exit_status> run_abort(const task_options &o) {
  const auto what = client_of(o).abort();
  if (!what) return fail(what.error());
  fmt::print("stillmap: ok: {} given up; all is as it was\n", control::name_of(*what));
  return exit_ok;
}

}  // namespace

void add_migrate_send(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "send",
      "Has a process send the memory of some tags to a machine where\nstillmap migrate receive "
      "waits. It goes on working meanwhile, and\nstands still only for what it wrote last. "
      "Interrupting this command\ngives it up, until it is on record that the memory is given "
      "away.\nFiles and folders are read by the process, with its rights.");
  const auto o = std::make_shared<send_command>();
  c->add_option("socket", o->socket, "where the process can be asked")
      ->required()
      ->type_name("SOCKET");
  add_tags(*c, o->what.tags, "whose memory; again for more of them");
  c->add_flag("--all", o->all, "all memory that has a tag");
  c->add_option("--to", o->what.to, "where the receiver is found: HOST:PORT")
      ->required()
      ->type_name("ADDRESS");
  add_identity(*c, o->who);
  c->add_option("--records", o->what.records,
                "a folder for the record of whose the task is, on a disk\nthat outlives the "
                "process (default: the process's own, if it\nhas one)")
      ->type_name("DIR");
  add_task_id(*c, o->what.task,
              "the task's number there (default: the process's own, or a\nnew one)");
  c->add_option("--pause", o->pause,
                fmt::format("the longest pause that is wanted (default: {})", o->pause))
      ->check(CLI::Range(1, 86'400'000))
      ->type_name("MS");
  c->add_option("--rounds", o->what.most_rounds, "copy so often at most (default: 30)")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N");
  c->add_flag("--give-up", o->give_up,
              "where the task writes faster than it can be copied: let it\nbe (default: a longer "
              "pause)");
  c->add_option("--channels", o->what.channels, "connections for data (default: 2)")
      ->check(CLI::Range(1, 64))
      ->type_name("N");
  add_size(*c, "--rate", o->what.bytes_per_second, "at most so much a second (default: no limit)");
  add_wait_option(*c, o->wait, "how long the other side may be silent (default: 10)");
  c->add_flag("--json", o->json, "the result for programs");
  c->callback([o, &body] {
    if (o->all != o->what.tags.empty()) {
      throw CLI::ValidationError("--tag", "either some tags, or --all");
    }
    check_identity(o->who);
    body = [o] { return run_send(*o); };
  });
}

void add_migrate_abort(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "abort",
      "Has a process give up the migration (or the snapshot) that is under\nway, and waits until "
      "it has: all is as it was. Refused once it is on\nrecord that the memory is given away.");
  const auto o = std::make_shared<task_options>();
  add_task_options(*c, *o);
  c->callback([o, &body] { body = [o] { return run_abort(*o); }; });
}

}  // namespace stillmap::tool
