// The manual and the completions: made from what is parsed, so every command is in them.
#include <fstream>

#include "tests/tool/command_test.h"
#include "tools/stillmap/cli/app_tree.h"
#include "tools/stillmap/cli/completion.h"
#include "tools/stillmap/cli/man_page.h"

namespace stillmap::testing {
namespace {

using tool::command_info;
using tool::option_info;

class help : public command_test {
 protected:
  static void expect_in(const std::string &text, const std::string &part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in:\n" << text;
  }
  // What bash offers for a line whose last word is being written.
  std::string offers(const std::string &line) const {
    const std::string script = folder_ / "try.bash", out = folder_ / "offers";
    std::ofstream(script) << "source <('" + program() + "' completion bash)\nCOMP_WORDS=(" + line +
                                 ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_stillmap\necho "
                                 "\"${COMPREPLY[*]}\"\n";
    EXPECT_EQ(std::system(("bash '" + script + "' >'" + out + "' 2>&1").c_str()), 0);
    return content(out);
  }
};

// A tree with one of each.
void build(CLI::App &app) {
  static std::string text;
  static std::vector<std::string> many;
  static bool flag;
  app.require_subcommand(1);
  CLI::App *const c = app.add_subcommand("cook", "Cooks a dish: soup. Slowly.\nOr 'fast' [too].");
  c->add_option("dish", text, "what")->required()->type_name("DISH");
  c->add_option("--heat,-t", text, ".how\\ hot")->type_name("low|high");
  c->add_option("--with", many, "and what")->type_name("N");
  c->add_flag("--lid,!--open", flag, "the lid");
  CLI::App *const nested = app.add_subcommand("wash", "Washes.");
  nested->require_subcommand(1);
  nested->add_subcommand("up", "Up.");
}

TEST(help_tree, is_what_the_parser_has) {
  CLI::App app("Things: to do.", "stillmap");
  build(app);
  const command_info root = tool::tree_of(app);
  ASSERT_EQ(tool::all_of(root).size(), 4u);
  const command_info &cook = root.commands.at(0);
  EXPECT_EQ(cook.summary(), "Cooks a dish: soup");
  EXPECT_EQ(cook.usage(), "stillmap cook [OPTIONS] DISH");
  ASSERT_EQ(cook.positionals.size(), 1u);
  EXPECT_TRUE(cook.positionals[0].is_path);
  std::vector<std::string> names;
  for (const option_info &o : cook.options)
    names.insert(names.end(), o.names.begin(), o.names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"-h", "--help", "-t", "--heat", "--with", "--lid",
                                             "--open"}));
  EXPECT_EQ(cook.options[1].choices, (std::vector<std::string>{"low", "high"}));
  EXPECT_FALSE(cook.options[1].is_path);
  EXPECT_TRUE(cook.options[2].many);
  EXPECT_FALSE(cook.options[2].is_path);
  EXPECT_EQ(cook.options[3].value, "");
  EXPECT_EQ(root.commands.at(1).commands.at(0).name(), "wash up");
}

TEST(help_tree, is_told_to_each_in_its_own_language) {
  CLI::App app("Things: to do.", "stillmap");
  build(app);
  const command_info root = tool::tree_of(app);
  const auto has = [](const std::string &text, const std::string &part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
  };
  const std::string man = tool::man_page(root);
  has(man, ".TH STILLMAP 1");
  has(man, ".SS stillmap cook [OPTIONS] DISH");
  has(man, "\n\\&.how\\e hot\n");
  has(man, "\\fB\\-t\\fR, \\fB\\-\\-heat\\fR \\fIlow|high\\fR");
  has(tool::man_page(root.commands[0]), ".TH STILLMAP-COOK 1");
  const std::string zsh = tool::zsh_completion(root);
  has(zsh, "'cook:Cooks a dish\\: soup'");
  has(zsh, "'--heat[.how\\\\ hot]:low|high:(low high)'");
  has(zsh, "wash) _stillmap_wash ;;");
  const std::string fish = tool::fish_completion(root);
  has(fish,
      "complete -c stillmap -n '__fish_seen_subcommand_from cook' -s t -l heat -x -a 'low high'");
  has(fish, "-n '__fish_seen_subcommand_from wash; and not __fish_seen_subcommand_from up' -fa up");
}

TEST_F(help, every_command_has_a_manual_and_is_offered) {
  const ran all = run("man");
  EXPECT_EQ(all.status, 0) << all.err;
  for (const char *command :
       {"demo", "doctor", "replay", "inspect", "status", "snapshot", "restore", "handoff give",
        "handoff take", "migrate send", "migrate receive", "migrate status", "migrate settle",
        "completion"}) {
    expect_in(all.out, std::string(".SS stillmap ") + command);
    const ran one = run(std::string("man ") + command);
    EXPECT_EQ(one.status, 0) << one.err;
    expect_in(one.out, ".SH SYNOPSIS");
  }
  expect_in(all.out, ".SH EXIT STATUS\n0 ok; 1 ");
  expect_usage("man dance", "there is no command 'dance'");
  expect_usage("completion csh", "csh");
  for (const char *shell : {"zsh", "fish"}) {
    const ran r = run(std::string("completion ") + shell);
    EXPECT_EQ(r.status, 0);
    expect_in(r.out, "handoff");
    expect_in(r.out, "none lz4 zstd");
  }
}

TEST_F(help, bash_completes) {
  if (std::system("bash -c true >/dev/null 2>&1") != 0) GTEST_SKIP() << "no bash here";
  EXPECT_EQ(offers("stillmap re"), "replay record resume restore\n");
  EXPECT_EQ(offers("stillmap handoff ''"), "give take\n");
  EXPECT_EQ(offers("stillmap handoff give --t"), "--tag --to\n");
  EXPECT_EQ(offers("stillmap migrate s"), "send status settle\n");
  EXPECT_EQ(offers("stillmap migrate send --pe"), "--peer-fingerprint\n");
  EXPECT_EQ(offers("stillmap migrate send @x --to ''"), "\n");
  EXPECT_EQ(offers("stillmap snapshot @x --compress ''"), "none lz4 zstd\n");
  EXPECT_EQ(offers("stillmap status --wait ''"), "\n");
  std::ofstream(folder_ / "one.smi") << "x";
  EXPECT_EQ(offers("stillmap verify '" + (folder_ / "on").string() + "'"),
            (folder_ / "one.smi").string() + "\n");
}

}  // namespace
}  // namespace stillmap::testing
