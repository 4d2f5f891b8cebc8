// stillmap man and stillmap completion: made from the tree of commands.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/cli/completion.h"
#include "tools/stillmap/cli/man_page.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

struct man_options {
  std::vector<std::string> words;
  std::string all;  // a folder
};

outcome<exit_status> write_all(const command &root, const std::string &folder) {
  std::error_code trouble;
  std::filesystem::create_directories(folder, trouble);
  for (const command *c : root.all()) {
    const std::string path = folder + '/' + man_name(*c) + ".1";
    std::ofstream out(path);
    out << man_page(*c);
    out.close();
    if (!out) return fail(exit_failed, fmt::format("cannot write {}", path));
  }
  return exit_ok;
}

outcome<exit_status> run_man(const man_options &o) {
  const command root = make_commands();
  if (!o.all.empty()) return write_all(root, o.all);
  for (const command *c : root.all()) {
    if (c->words != o.words) continue;
    fmt::print("{}", man_page(*c));
    return exit_ok;
  }
  return fail(exit_usage, fmt::format("there is no command '{}'", join(o.words, " ")));
}

outcome<exit_status> run_completion(const std::string &shell) {
  const command root = make_commands();
  fmt::print("{}", shell == "bash"  ? bash_completion(root)
                   : shell == "zsh" ? zsh_completion(root)
                                    : fish_completion(root));
  return exit_ok;
}

}  // namespace

void add_help_commands(command &root) {
  const auto [man, o] = root.add("man", run_man,
                                 "Prints the manual page of a command for man(1). For example: "
                                 "stillmap man task snapshot | man -l -");
  man.arguments(o.words, "COMMAND", "the words of a command (default: stillmap itself)");
  man.text("--all", o.all, "DIR", "write all manual pages into this folder instead");

  const auto [completion, shell] = root.add(
      "completion", run_completion,
      "Prints a completion script for a shell. For example: source <(stillmap completion bash)");
  completion.argument(shell, "bash|zsh|fish", "the shell").required();
}

}  // namespace stillmap::tool
