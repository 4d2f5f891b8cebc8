// The command line of `cost_table`.
#include "bench/costs/arguments.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace stillmap::costs {
namespace {

tl::expected<arguments, std::string> parsed(std::vector<std::string> words) {
  words.insert(words.begin(), "cost_table");
  std::vector<char *> argv;
  for (std::string &word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse(static_cast<int>(words.size()), argv.data());
}

std::string refusal(std::vector<std::string> words) {
  const auto p = parsed(std::move(words));
  return p ? "" : p.error();
}

TEST(cost_arguments, are_read) {
  const auto p = parsed(
      {"--out", "here", "--seconds=2.5", "--only", "small", "threads", "--only=live", "--quick"});
  ASSERT_TRUE(p.has_value()) << p.error();
  EXPECT_EQ(p->out, "here");
  EXPECT_EQ(p->options.seconds, 2.5);
  EXPECT_EQ(p->options.only, (std::vector<std::string>{"small", "threads", "live"}));
  EXPECT_TRUE(p->options.quick);
  EXPECT_FALSE(p->help);
}

TEST(cost_arguments, have_defaults) {
  const auto all = parsed({});
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->options.seconds, 240);
  EXPECT_TRUE(all->options.only.empty());
  const auto quick = parsed({"--quick"});
  ASSERT_TRUE(quick.has_value());
  EXPECT_LT(quick->options.seconds, 10);
}

TEST(cost_arguments, that_are_wrong_are_named_with_the_limit) {
  EXPECT_EQ(refusal({"--onyl", "small"}), "there is no option '--onyl'");
  EXPECT_EQ(refusal({"--quick", "-x"}), "there is no option '-x'");
  EXPECT_EQ(refusal({"--quick=1"}), "--quick=1: takes no value");
  EXPECT_EQ(refusal({"--seconds"}), "--seconds needs a value");
  for (const char *text : {"-4", "86401", "4s", "", "nan"}) {
    EXPECT_EQ(refusal({"--seconds", text}),
              "--seconds: '" + std::string(text) + "' is not a number from 0 to 86400");
  }
  EXPECT_EQ(refusal({"--only", "small", "big"}),
            "--only: 'big' is not one of small, sizes, adjacent, threads, live, touch, waits, "
            "capture, ceiling");
  EXPECT_EQ(refusal({"--quick", "small"}), "'small' is one argument too many");
  EXPECT_EQ(refusal({"--", "small"}), "'small' is one argument too many");
}

TEST(cost_arguments, help_names_all_options_and_parts) {
  for (const char *word : {"--help", "-h"}) {
    const auto p = parsed({word});
    ASSERT_TRUE(p.has_value());
    EXPECT_TRUE(p->help);
  }
  const std::string text = help_text();
  for (const char *word :
       {"--out FOLDER", "--seconds N", "--quick", "--only PART...", "small: ", "ceiling: "}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace stillmap::costs
