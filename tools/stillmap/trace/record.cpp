// stillmap record: runs a program and keeps what it asks of Stillmap's allocator, as a trace.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "stillmap/allocators/replay/trace_file.h"
#include "tools/stillmap/cli/command.h"

extern char **environ;

namespace stillmap::tool {
namespace {

namespace fs = std::filesystem;

struct record_command {
  std::string into;
  std::vector<std::string> program;
};

// Its status as wait() has it. While it runs, keys that stop a program are for it alone.
outcome<int> run_with(const std::vector<std::string> &program, const std::string &record_to) {
  std::vector<char *> arguments, variables;
  for (const std::string &a : program) arguments.push_back(const_cast<char *>(a.c_str()));
  arguments.push_back(nullptr);
  constexpr std::string_view name = "STILLMAP_RECORD=";
  std::string ours = std::string(name) + record_to;
  for (char **v = environ; *v != nullptr; ++v) {
    if (std::strncmp(*v, name.data(), name.size()) != 0) variables.push_back(*v);
  }
  variables.push_back(ours.data());
  variables.push_back(nullptr);

  struct sigaction ignore = {}, interrupt = {}, quit = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &ignore, &interrupt);
  ::sigaction(SIGQUIT, &ignore, &quit);
  posix_spawnattr_t how;
  ::posix_spawnattr_init(&how);
  sigset_t usual;
  ::sigemptyset(&usual);
  ::sigaddset(&usual, SIGINT);
  ::sigaddset(&usual, SIGQUIT);
  ::posix_spawnattr_setsigdefault(&how, &usual);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, arguments[0], nullptr, &how, arguments.data(), variables.data());
  ::posix_spawnattr_destroy(&how);
  int status = 0;
  if (failed == 0) {
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  ::sigaction(SIGINT, &interrupt, nullptr);
  ::sigaction(SIGQUIT, &quit, nullptr);
  if (failed != 0) {
    return fail(exit_usage, fmt::format("cannot start {}: {}", program[0],
                                        std::generic_category().message(failed)));
  }
  return status;
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

outcome<exit_status> run_record(const record_command &o) {
  // Written as text beside where it goes, so that it is there however the program ends.
  const std::string raw = fs::absolute(o.into).string() + ".part";
  std::error_code trouble;
  fs::remove(raw, trouble);
  const auto status = run_with(o.program, raw);
  if (!status) return tl::unexpected(status.error());
  if (!fs::exists(raw, trouble)) {
    return fail(exit_failed,
                fmt::format("{} {} and made no stillmap::caching_allocator: nothing was recorded",
                            o.program[0], how_it_ended(*status)));
  }
  auto text = read_text(raw);
  if (!text) return tl::unexpected(text.error());
  // Whoever was killed while writing left half a line.
  if (!text->empty() && text->back() != '\n') text->resize(text->find_last_of('\n') + 1);
  const auto read = read_trace(*text);
  if (!read) return fail(exit_failed, read.error().message(raw));
  if (auto saved = save_text(o.into, *text); !saved) return tl::unexpected(saved.error());
  fs::remove(raw, trouble);
  const trace_totals &t = read->totals;
  fmt::print("recorded  {} events: {} blocks on {} stream{}, {} live at most, {} iteration{}\n",
             exact(read->events.size()), exact(t.blocks), t.streams, t.streams == 1 ? "" : "s",
             human(t.peak_live_bytes), exact(t.iterations), t.iterations == 1 ? "" : "s");
  fmt::print("trace     {}\n", o.into);
  // Processes that it started, and that used the allocator too.
  for (const auto &entry : fs::directory_iterator(fs::path(raw).parent_path(), trouble)) {
    const std::string name = entry.path().string();
    if (name.starts_with(raw + ".")) fmt::print("another   {}\n", name);
  }
  if (*status != 0) {
    return fail(exit_failed, fmt::format("{} {}; what it had asked for until then is in {}",
                                         o.program[0], how_it_ended(*status), o.into));
  }
  return exit_ok;
}

}  // namespace

void add_record(CLI::App &app, command_body &body) {
  auto o = std::make_shared<record_command>();
  CLI::App *c = app.add_subcommand(
      "record",
      "Runs a program and writes down what it asks of stillmap::caching_allocator, as a trace for\n"
      "stillmap replay. A program that is killed leaves what it had asked for until then.");
  c->footer(
      "Example: stillmap record --into mine.trace.zst -- ./my_program --its options\n"
      "The environment variable STILLMAP_RECORD=FILE does the same without this command.\n\n" +
      std::string(exit_status_help));
  c->add_option("--into,-o", o->into,
                "the trace; compressed where the name ends with .zst\n(default: PROGRAM.trace.zst)")
      ->type_name("FILE");
  c->add_option("program", o->program, "the program and its arguments, behind --")
      ->type_name("-- PROGRAM ...")
      ->required();
  c->callback([o, &body] {
    if (o->into.empty()) {
      o->into = std::filesystem::path(o->program[0]).filename().string() + ".trace.zst";
    }
    body = [o] { return run_record(*o); };
  });
}

}  // namespace stillmap::tool
