// stillmap suspend and resume: takes the memory of a running process away, and gives it back.
#include <fmt/format.h>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

struct suspend_command {
  task_options task;
  std::string tag, to = "pinned", directory;
  bool json = false;
};

outcome<exit_status> tell(const suspend_command &o, bool away,
                          const control::outcome<checkpoint::suspended_tag> &done) {
  if (!done) return fail(done.error());
  if (o.json) {
    json_writer json;
    json.begin_object().field("tag", done->tag).field("bytes", std::uint64_t{done->bytes});
    json.field("places", std::uint64_t{done->places});
    json.field("released_bytes", done->released.bytes());
    fmt::print("{}\n", json.field("kept_in", name_of(done->contents)).end().text());
    return exit_ok;
  }
  fmt::print("stillmap: ok: {} {}: {} at {} place{}", printable(done->tag),
             away ? "suspended" : "resumed", human(done->bytes), exact(done->places),
             done->places == 1 ? "" : "s");
  if (away && done->released.bytes() != 0) {
    fmt::print("; the device has {} back", human(done->released.bytes()));
  }
  fmt::print("\n");
  return exit_ok;
}

outcome<exit_status> run_suspend(const suspend_command &o) {
  control::suspend_request r;
  r.tag = o.tag;
  r.contents = o.to == "file"      ? checkpoint::keep_in::file
               : o.to == "dropped" ? checkpoint::keep_in::nothing
                                   : checkpoint::keep_in::pinned_memory;
  r.directory = absolute(o.directory);
  return tell(o, true, client_of(o.task).suspend(r));
}

outcome<exit_status> run_resume(const suspend_command &o) {
  return tell(o, false, client_of(o.task).resume(o.tag));
}

CLI::App *add(CLI::App &app, suspend_command &o, const char *name, const char *says) {
  CLI::App *const c = app.add_subcommand(name, says);
  add_task_options(*c, o.task);
  c->add_option("tag", o.tag, "whose memory")->required()->type_name("TAG");
  c->add_flag("--json", o.json, "the result for programs");
  return c;
}

}  // namespace

void add_suspend(CLI::App &app, command_body &body) {
  const auto o = std::make_shared<suspend_command>();
  CLI::App *const c = add(app, *o, "suspend",
                          "Has a process bring its work to a stop and let go of the memory of a\n"
                          "tag: the device has it back until stillmap resume.");
  c->add_option("--to", o->to,
                "where contents are kept: pinned host memory (default), a\nfile, or nowhere: "
                "dropped contents do not come back")
      ->check(CLI::IsMember({"pinned", "file", "dropped"}))
      ->type_name("pinned|file|dropped");
  c->add_option("--folder", o->directory, "of the file (default: the process's $TMPDIR, else /tmp)")
      ->type_name("FOLDER");
  c->callback([o, &body] { body = [o] { return run_suspend(*o); }; });
}

void add_resume(CLI::App &app, command_body &body) {
  const auto o = std::make_shared<suspend_command>();
  CLI::App *const c = add(app, *o, "resume",
                          "Gives a suspended tag its memory and contents back, at the same\n"
                          "addresses. Where the device has too little memory it stays suspended.");
  c->callback([o, &body] { body = [o] { return run_resume(*o); }; });
}

}  // namespace stillmap::tool
