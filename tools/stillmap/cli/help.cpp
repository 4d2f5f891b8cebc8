// stillmap completion and man: made from the very options that are parsed.
#include <fmt/format.h>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/cli/completion.h"
#include "tools/stillmap/cli/man_page.h"

namespace stillmap::tool {
namespace {

outcome<exit_status> run_completion(const CLI::App &app, const std::string &shell) {
  const command_info root = tree_of(app);
  fmt::print("{}", shell == "bash"  ? bash_completion(root)
                   : shell == "zsh" ? zsh_completion(root)
                                    : fish_completion(root));
  return exit_ok;
}

outcome<exit_status> run_man(const CLI::App &app, const std::vector<std::string> &words) {
  const command_info root = tree_of(app);
  for (const command_info *c : all_of(root)) {
    if (c->words != words) continue;
    fmt::print("{}", man_page(*c));
    return exit_ok;
  }
  std::string asked;
  for (const std::string &w : words) asked += (asked.empty() ? "" : " ") + w;
  return fail(exit_usage, fmt::format("there is no command '{}'", asked));
}

}  // namespace

void add_completion(CLI::App &app, command_body &body) {
  CLI::App *const c =
      app.add_subcommand("completion",
                         "Prints what a shell needs to complete this command's line, e.g.\n"
                         "source <(stillmap completion bash)");
  const auto shell = std::make_shared<std::string>();
  c->add_option("shell", *shell, "which shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("bash|zsh|fish");
  c->callback(
      [&app, shell, &body] { body = [&app, shell] { return run_completion(app, *shell); }; });
}

void add_man(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand("man",
                                         "Prints the manual, or that of one command, for man(1):\n"
                                         "stillmap man snapshot | man -l -");
  const auto words = std::make_shared<std::vector<std::string>>();
  c->add_option("command", *words, "which command (default: all of them)")->type_name("NAME");
  c->callback([&app, words, &body] { body = [&app, words] { return run_man(app, *words); }; });
}

}  // namespace stillmap::tool
