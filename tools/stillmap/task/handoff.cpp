// stillmap handoff give and take: memory of one process becomes another's.
#include <fmt/format.h>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/task/handoff_receive.h"
#include "tools/stillmap/task/task_options.h"

namespace stillmap::tool {
namespace {

struct give_command {
  std::string socket;
  control::give_request what;
  double wait = 30;
  bool json = false;
};

outcome<exit_status> run_give(const give_command &o) {
  control::give_request r = o.what;
  r.to = absolute(r.to);
  r.wait = milliseconds_of(o.wait);
  const auto given = control::client(o.socket).give(r);
  if (!given) return fail(given.error());
  if (o.json) {
    json_writer json;
    json.begin_object().field("to", static_cast<int>(given->to.pid));
    json.field("bytes", std::uint64_t{given->bytes}).field("pages", std::uint64_t{given->pages});
    json.field("blocks", std::uint64_t{given->blocks}).field("copied_bytes", 0);
    fmt::print("{}\n", json.field("unmapped", given->unmapped).end().text());
  } else {
    fmt::print("stillmap: ok: {} in {} block{} ({} pages), now memory of process {}{}\n",
               human(given->bytes), exact(given->blocks), given->blocks == 1 ? "" : "s",
               exact(given->pages), given->to.pid,
               given->unmapped ? "" : "; the giver could not be made to let go of its addresses");
  }
  return exit_ok;
}

void add_give(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "give",
      "Has a process hand the memory of some tags over to another one that\nwaits for it: no byte "
      "is copied, and one of them owns it whatever dies.");
  const auto o = std::make_shared<give_command>();
  c->add_option("socket", o->socket, "where the process that gives can be asked")
      ->required()
      ->type_name("SOCKET");
  add_tags(*c, o->what.tags, "whose memory; again for more of them");
  c->get_option("--tag")->required();
  c->add_option("--to", o->what.to, "where the process that takes listens")
      ->required()
      ->type_name("SOCKET");
  add_wait_option(*c, o->wait, "how long to wait for the taker, each time (default: 30)");
  c->add_flag("--json", o->json, "the result for programs");
  c->callback([o, &body] { body = [o] { return run_give(*o); }; });
}

void add_take(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "take",
      "Takes what another process hands over, prints its blocks, and holds\nthem until SIGTERM, "
      "SIGINT, the end of a pipe it reads from, or until\nthey have been handed on. It can be "
      "asked meanwhile.");
  const auto o = std::make_shared<take_command>();
  c->add_option("socket", o->socket, "where to listen: a path, or an abstract name behind '@'")
      ->required()
      ->type_name("SOCKET");
  c->add_flag("--hold,!--free", o->hold,
              "hold the memory (default); --free: give it back to the\ndevice, its contents lost");
  c->add_option("--control", o->control, "where to be asked (default: SOCKET.control)")
      ->type_name("SOCKET");
  add_wait_option(*c, o->wait, "how long to wait for a giver (default: 3600)");
  c->add_flag("--json", o->json, "the blocks for programs");
  add_driver_options(*c, o->where);
  c->callback([o, &body] { body = [o] { return run_take(*o); }; });
}

}  // namespace

void add_handoff(CLI::App &app, command_body &body) {
  CLI::App *const c =
      app.add_subcommand("handoff", "Memory of one process becomes another's, on this machine.");
  c->require_subcommand(1);
  add_give(*c, body);
  add_take(*c, body);
}

}  // namespace stillmap::tool
