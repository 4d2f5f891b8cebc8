// The command `stillmap`.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "tools/stillmap/cli/command.h"

namespace {

using namespace stillmap::tool;

int run(int argc, char **argv) {
  CLI::App app(
      "stillmap: device memory that grows and moves while its address stays.\n"
      "Each command explains itself: stillmap COMMAND --help",
      "stillmap");
  app.require_subcommand(1);
  app.footer(exit_status_help);
  command_body body;
  add_demo(app, body);
  add_doctor(app, body);
  add_map(app, body);
  add_replay(app, body);
  add_compare(app, body);
  add_soak(app, body);
  add_record(app, body);
  add_convert(app, body);
  add_inspect(app, body);
  add_verify(app, body);
  add_diff(app, body);
  add_flatten(app, body);
  add_status(app, body);
  add_suspend(app, body);
  add_resume(app, body);
  add_snapshot(app, body);
  add_restore(app, body);
  add_handoff(app, body);
  add_migrate(app, body);
  add_journey(app, body);
  add_completion(app, body);
  add_man(app, body);

  // CLI11 would only say that some command is required.
  if (argc > 1 && argv[1][0] != '-') {
    bool found = false;
    std::string known;
    for (const CLI::App *c : app.get_subcommands([](CLI::App *) { return true; })) {
      found = found || c->get_name() == argv[1];
      known += fmt::format("{}{}", known.empty() ? "" : ", ", c->get_name());
    }
    if (!found) {
      fmt::print(stderr, "stillmap: there is no command '{}'; there are {}\n", argv[1], known);
      return exit_usage;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &asked_for_help) {
    return app.exit(asked_for_help);
  } catch (const CLI::ParseError &e) {
    fmt::print(
        stderr, "stillmap: {} (see stillmap {}--help)\n", e.what(),
        app.get_subcommands().empty() ? "" : app.get_subcommands().front()->get_name() + " ");
    return exit_usage;
  }
  const auto status = body();
  if (status) return *status;
  std::fflush(stdout);
  fmt::print(stderr, "stillmap: {}\n", status.error().line);
  return status.error().status;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc &) {
    std::fputs("stillmap: out of host memory\n", stderr);
  } catch (const std::exception &e) {
    std::fprintf(stderr, "stillmap: unexpected trouble on the host: %s\n", e.what());
  }
  return stillmap::tool::exit_failed;
}
