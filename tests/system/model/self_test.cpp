// Tests of the model itself: a byte changed behind its back is reported, the sequence is shrunk, and the
// printed text reproduces it. Also tests the text form.
#include <gtest/gtest.h>

#include "tests/support/buffer_model.h"
#include "tests/support/gpu_test.h"

namespace stillmap::testing {
namespace {

class model_self_test : public device_test {};

TEST_F(model_self_test, APlantedByteIsFoundShrunkAndReplayed) {
  const op_runner planted = [](const op_sequence &o) { return buffer_model::run(o, "shrink"); };
  op_sequence ops;
  std::uint64_t seed = 1;
  for (; seed < 200; ++seed) {  // one in which a shrink comes after a write
    ops = buffer_model::generate(seed, 40);
    if (planted(ops)) break;
  }
  ASSERT_LT(seed, 200u) << "no sequence noticed the planted byte";
  ASSERT_FALSE(buffer_model::run(ops).has_value()) << "it fails without the planted byte";

  const op_sequence least = shrink(ops, planted);
  const auto failed = planted(least);
  ASSERT_TRUE(failed.has_value());
  EXPECT_NE(failed->what.find("cell"), std::string::npos) << failed->what;
  // Creating, growing, writing and shrinking are needed; little else is.
  EXPECT_LE(least.size(), 6u) << to_text(least);
  EXPECT_GE(least.size(), 4u) << to_text(least);

  const auto again = parse_ops(to_text(least));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(*again, least);
  EXPECT_TRUE(planted(*again).has_value());
  EXPECT_FALSE(buffer_model::run(*again).has_value());

  const std::string report = report_failure(least, planted);
  EXPECT_NE(report.find("ops = \"" + to_text(least) + "\""), std::string::npos) << report;
}

TEST_F(model_self_test, AnUnknownOperationIsAFailure) {
  const auto failed = buffer_model::run({{"create", {0, 0, 4}}, {"frobnicate", {1}}});
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->at, 1u);
  EXPECT_NE(failed->what.find("frobnicate"), std::string::npos);
}

TEST(OpSequence, TextAndBack) {
  const op_sequence ops{{"resize", {0, 4194304, 1}}, {"check", {}}, {"fork", {0, 1}}};
  EXPECT_EQ(to_text(ops), "resize 0 4194304 1; check; fork 0 1");
  EXPECT_EQ(parse_ops(to_text(ops)), ops);
  EXPECT_EQ(parse_ops("  resize 0 4194304 1 # grows\n\ncheck\nfork 0 1;"), ops);
  EXPECT_EQ(parse_ops(""), op_sequence{});
}

TEST(OpSequence, WhatIsNoSequenceIsRefused) {
  for (const char *text : {"resize -1", "resize 1x", "Resize 1", "resize 0x10", "1 2",
                           "resize 99999999999999999999"}) {
    EXPECT_FALSE(parse_ops(text).has_value()) << text;
  }
}

TEST(OpSequence, ShrinkingKeepsWhatIsNeeded) {
  op_sequence ops;
  for (std::uint64_t i = 0; i < 100; ++i) ops.push_back({"a", {i}});
  const auto needs = [](const op_sequence &o) -> std::optional<op_failure> {
    bool three = false, seventy = false;
    for (std::size_t i = 0; i < o.size(); ++i) {
      three = three || o[i].arg(0) == 3;
      seventy = seventy || (three && o[i].arg(0) == 70);
      if (seventy) return op_failure{i, "both"};
    }
    return std::nullopt;
  };
  EXPECT_EQ(to_text(shrink(ops, needs)), "a 3; a 70");
}

}  // namespace
}  // namespace stillmap::testing
