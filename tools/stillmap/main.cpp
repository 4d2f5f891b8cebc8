// The command `stillmap`.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "stillmap/vmm/base/version.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/common/terminal.h"

namespace {

using namespace stillmap::tool;

// One line on standard error; with --json, also a document on standard output.
int report(const failure &f, const command &of, bool as_json) {
  std::fflush(stdout);
  if (as_json) fmt::print("{}", json_of(f, of.name()));
  fmt::print(stderr, "stillmap: {}{}{}\n", of.name(), of.words.empty() ? "" : ": ", f.line);
  return f.status;
}

int run(const std::vector<std::string> &words) {
  const command root = make_commands();
  const bool as_json = std::find(words.begin(), words.end(), "--json") != words.end();
  invocation asked;
  if (auto parsed = parse(root, words, asked); !parsed) {
    parsed.error().line += fmt::format(" (see stillmap {}{}--help)", asked.what->name(),
                                       asked.what->words.empty() ? "" : " ");
    return report(parsed.error(), *asked.what, as_json);
  }
  if (asked.version) {
    fmt::print("stillmap {}\n", STILLMAP_VERSION_STRING);
    return exit_ok;
  }
  if (asked.help) {
    const auto width = static_cast<std::size_t>(std::min(terminal_of(stdout).width, 100));
    fmt::print("{}", help_text(*asked.what, width));
    return exit_ok;
  }
  const auto status = asked.what->run();
  return status ? static_cast<int>(*status) : report(status.error(), *asked.what, as_json);
}

}  // namespace

int main(int argc, char **argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::bad_alloc &) {
    std::fputs("stillmap: out of host memory\n", stderr);
  } catch (const std::exception &e) {
    std::fprintf(stderr, "stillmap: unexpected failure: %s\n", e.what());
  }
  return exit_failed;
}
