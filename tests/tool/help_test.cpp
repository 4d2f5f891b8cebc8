// The tree of commands: the parser, --help, the manual pages and the completions.
#include <fstream>

#include "tests/tool/command_test.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/cli/completion.h"
#include "tools/stillmap/cli/man_page.h"

namespace stillmap::testing {
namespace {

using tool::command;
using tool::exit_ok;
using tool::invocation;

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
struct tree {
  std::string dish, heat;
  std::vector<std::string> with;
  bool lid = false;
  int minutes = 5;
  command root{"Things: to do."};

  tree() {
    command &cook = root.add("cook", "Cooks a dish: soup. Slowly, or 'fast' [too].");
    cook.argument(dish, "DISH", "what").required();
    cook.text("-t,--heat", heat, "low|high", ".how\\ hot");
    cook.texts("--with", with, "N", "and what");
    cook.flag("--lid", lid, "the lid");
    cook.flag("--open", lid, "no lid", false);
    cook.number("--minutes", minutes, 1, 60, "N", "how long");
    cook.run = [] { return exit_ok; };
    command &nested = root.add("wash", "Washes.");
    nested.add("up", "Up.").run = [] { return exit_ok; };
  }
  // The failure's text; empty: none.
  std::string parse(const std::vector<std::string> &words) {
    invocation asked;
    const auto done = tool::parse(root, words, asked);
    return done ? "" : done.error().line;
  }
};

TEST(help_tree, describes_itself) {
  const tree t;
  ASSERT_EQ(t.root.all().size(), 4u);
  const command &cook = t.root.commands.at(0);
  EXPECT_EQ(cook.summary(), "Cooks a dish: soup");
  EXPECT_EQ(cook.usage(), "stillmap cook [OPTIONS] DISH");
  ASSERT_EQ(cook.positionals.size(), 1u);
  EXPECT_TRUE(cook.positionals[0].takes_path());
  EXPECT_EQ(cook.options[0].names, (std::vector<std::string>{"-t", "--heat"}));
  EXPECT_EQ(cook.options[0].choices(), (std::vector<std::string>{"low", "high"}));
  EXPECT_FALSE(cook.options[0].takes_path());
  EXPECT_TRUE(cook.options[1].is_repeated);
  EXPECT_FALSE(cook.options[1].takes_path());
  EXPECT_EQ(cook.options[2].value, "");
  EXPECT_EQ(t.root.commands.at(1).commands.at(0).name(), "wash up");
}

TEST(help_tree, options_are_parsed_wherever_they_stand) {
  tree t;
  EXPECT_EQ(t.parse({"cook", "--heat=low", "soup", "--with", "a", "--lid", "--with=-b"}), "");
  EXPECT_EQ(t.dish + t.heat, "souplow");
  EXPECT_EQ(t.with, (std::vector<std::string>{"a", "-b"}));
  EXPECT_TRUE(t.lid);
  tree u;
  EXPECT_EQ(u.parse({"cook", "-thigh", "--minutes", "60", "--", "--dish"}), "");
  EXPECT_EQ(u.dish + u.heat, "--dishhigh");
  EXPECT_EQ(u.minutes, 60);
  EXPECT_EQ(tree().parse({"wash", "up"}), "");
}

TEST(help_tree, wrong_words_are_named) {
  EXPECT_EQ(tree().parse({}), "a command is missing; there are cook, wash");
  EXPECT_EQ(tree().parse({"wash"}), "a command is missing; there are up");
  EXPECT_EQ(tree().parse({"cok"}), "there is no command 'cok'; did you mean 'cook'?");
  EXPECT_EQ(tree().parse({"up"}), "there is no command 'up'; did you mean 'wash up'?");
  EXPECT_EQ(tree().parse({"dance"}), "there is no command 'dance'; there are cook, wash");
  EXPECT_EQ(tree().parse({"cook"}), "DISH is missing");
  EXPECT_EQ(tree().parse({"cook", "a", "b"}), "'b' is one argument too many");
  EXPECT_EQ(tree().parse({"cook", "a", "--haet", "low"}),
            "there is no option '--haet'; did you mean '--heat'?");
  EXPECT_EQ(tree().parse({"cook", "a", "--heat"}), "--heat needs a low|high");
  EXPECT_EQ(tree().parse({"cook", "a", "--heat", "hihg"}),
            "--heat: 'hihg' is not one of low, high; did you mean 'high'?");
  EXPECT_EQ(tree().parse({"cook", "a", "--heat", "low", "-t", "low"}), "-t is given twice");
  EXPECT_EQ(tree().parse({"cook", "a", "--lid=1"}), "--lid takes no value");
  EXPECT_EQ(tree().parse({"cook", "a", "--help=3"}), "--help takes no value");
  EXPECT_EQ(tree().parse({"cook", "-h3"}), "-h takes no value");
  EXPECT_EQ(tree().parse({"--version=1"}), "--version takes no value");
  for (const char *minutes : {"0", "61", "5x", "", "-1", "99999999999"}) {
    EXPECT_EQ(tree().parse({"cook", "a", "--minutes", minutes}),
              "--minutes: '" + std::string(minutes) + "' is not a number from 1 to 60");
  }
}

TEST(help_tree, the_nearest_word_is_not_far) {
  EXPECT_EQ(tool::nearest("verfy", {"diff", "verify"}), "verify");
  EXPECT_EQ(tool::nearest("evrify", {"diff", "verify"}), "verify");
  EXPECT_EQ(tool::nearest("dance", {"diff", "verify"}), "");
  EXPECT_EQ(tool::nearest("", {"diff"}), "");
}

TEST(help_tree, is_written_in_each_language) {
  const tree t;
  const auto has = [](const std::string &text, const std::string &part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
  };
  const std::string text = tool::help_text(t.root.commands[0], 80);
  has(text, "Usage: stillmap cook [OPTIONS] DISH\n");
  has(text, "\n  -t, --heat low|high      .how\\ hot\n");
  const std::string man = tool::man_page(t.root);
  has(man, ".TH STILLMAP 1");
  has(man, ".TP\n\\fBstillmap cook [OPTIONS] DISH\\fR\nCooks a dish: soup.\n");
  const std::string cook = tool::man_page(t.root.commands[0]);
  has(cook, ".TH STILLMAP-COOK 1");
  has(cook, "\n\\&.how\\e hot\n");
  has(cook, "\\fB\\-t\\fR, \\fB\\-\\-heat\\fR \\fIlow|high\\fR");
  const std::string zsh = tool::zsh_completion(t.root);
  has(zsh, "'cook:Cooks a dish\\: soup'");
  has(zsh, "'--heat[.how\\\\ hot]:low|high:(low high)'");
  has(zsh, "wash) _stillmap_wash ;;");
  const std::string fish = tool::fish_completion(t.root);
  has(fish,
      "complete -c stillmap -n '__fish_seen_subcommand_from cook' -s t -l heat -x -a 'low high'");
  has(fish, "-n '__fish_seen_subcommand_from wash; and not __fish_seen_subcommand_from up' -fa up");
}

TEST_F(help, every_command_has_a_manual_page_and_is_offered) {
  const std::string pages = folder_ / "man1";
  ASSERT_EQ(run("man --all '" + pages + "'").status, 0);
  const auto commands = tool::make_commands();
  for (const command *c : commands.all()) {
    const ran one = run("man " + c->name());
    EXPECT_EQ(one.status, 0) << one.err;
    expect_in(one.out, ".SH SYNOPSIS");
    expect_in(one.out, ".SH EXIT STATUS\n0 ok; 1 ");
    EXPECT_EQ(content(pages + '/' + tool::man_name(*c) + ".1"), one.out);
  }
  for (const char *command :
       {"demo growth", "doctor", "trace replay", "image inspect", "task status", "task snapshot",
        "image restore", "task handoff send", "task handoff receive", "task migrate send",
        "task migrate receive", "task migrate status", "task migrate resolve", "completion"}) {
    expect_in(run("man").out, std::string("\n\\fBstillmap ") + command);
  }
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
  EXPECT_EQ(offers("stillmap t"), "task top trace\n");
  EXPECT_EQ(offers("stillmap task handoff ''"), "send receive\n");
  EXPECT_EQ(offers("stillmap task handoff send --t"), "--tag --to --timeout\n");
  EXPECT_EQ(offers("stillmap task migrate s"), "send status\n");
  EXPECT_EQ(offers("stillmap task migrate send --pe"), "--peer-fingerprint\n");
  EXPECT_EQ(offers("stillmap task migrate send @x --to ''"), "\n");
  EXPECT_EQ(offers("stillmap task snapshot @x --compress ''"), "none lz4 zstd\n");
  EXPECT_EQ(offers("stillmap task status --timeout ''"), "\n");
  std::ofstream(folder_ / "one.smi") << "x";
  EXPECT_EQ(offers("stillmap image verify '" + (folder_ / "on").string() + "'"),
            (folder_ / "one.smi").string() + "\n");
}

}  // namespace
}  // namespace stillmap::testing
