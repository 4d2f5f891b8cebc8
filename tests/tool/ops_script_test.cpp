// The script language of `stillmap map`.
#include "tools/stillmap/map/ops_script.h"

#include <gtest/gtest.h>

namespace stillmap::tool {
namespace {

std::string trouble(const char *script) {
  const auto ops = parse_operations(script);
  EXPECT_FALSE(ops) << script;
  if (ops) return "";
  EXPECT_EQ(ops.error().status, exit_usage);
  return ops.error().line;
}

TEST(OpsScript, EveryOperation) {
  const auto ops = parse_operations(
      "grow a 64M; shrink a; shrink a 2M; commit a 4M 2M; decommit a 0 2M; alias a 0 4M r;"
      "alias a 0 4M s 3\nfork a b; write b 1 2; splice a 2M 4M b 128M; drop b; hold; release");
  ASSERT_TRUE(ops) << ops.error().line;
  ASSERT_EQ(ops->size(), 13u);
  EXPECT_EQ((*ops)[0].what, verb::grow);
  EXPECT_EQ((*ops)[0].name, "a");
  EXPECT_EQ((*ops)[0].size, 64u << 20);
  EXPECT_EQ((*ops)[1].what, verb::shrink);
  EXPECT_EQ((*ops)[1].size, 0u);
  EXPECT_EQ((*ops)[2].size, 2u << 20);
  EXPECT_EQ((*ops)[3].offset, 4u << 20);
  EXPECT_EQ((*ops)[3].size, 2u << 20);
  EXPECT_EQ((*ops)[5].other, "r");
  EXPECT_EQ((*ops)[5].times, 1u);
  EXPECT_EQ((*ops)[6].times, 3u);
  EXPECT_EQ((*ops)[7].what, verb::fork);
  EXPECT_EQ((*ops)[7].line, 2u);
  EXPECT_EQ((*ops)[7].other, "b");
  EXPECT_EQ((*ops)[9].what, verb::splice);
  EXPECT_EQ((*ops)[9].offset, 2u << 20);
  EXPECT_EQ((*ops)[9].size, 4u << 20);
  EXPECT_EQ((*ops)[9].other, "b");
  EXPECT_EQ((*ops)[9].to_offset, 128u << 20);
  EXPECT_EQ((*ops)[12].what, verb::release);
}

TEST(OpsScript, SpaceCommentsAndEmptyOperationsAreNothing) {
  const auto ops =
      parse_operations(" ;; \n # grow x 1M; hold\n\t grow\ta  1M # more ; hold\n;hold");
  ASSERT_TRUE(ops) << ops.error().line;
  ASSERT_EQ(ops->size(), 2u);
  EXPECT_EQ((*ops)[0].line, 3u);
  EXPECT_EQ((*ops)[0].column, 3u);
  EXPECT_EQ((*ops)[0].text, "grow\ta  1M");
  EXPECT_EQ((*ops)[1].what, verb::hold);
  EXPECT_TRUE(parse_operations("")->empty());
}

TEST(OpsScript, ErrorsNameThePositionTheOperationAndTheTrouble) {
  EXPECT_EQ(trouble("grow a 1M;\n  grow a"),
            "line 2, column 3: 'grow a': the form is: grow NAME SIZE");
  EXPECT_EQ(trouble("grow a 1M 2M"),
            "line 1, column 1: 'grow a 1M 2M': the form is: grow NAME SIZE");
  EXPECT_EQ(
      trouble("hold; explode a"),
      "line 1, column 7: 'explode a': there is no operation 'explode'; there are grow, shrink, "
      "commit, decommit, alias, fork, write, splice, drop, hold, release");
  EXPECT_NE(trouble("grow a lots").find("'lots' is not a size"), std::string::npos);
  EXPECT_NE(trouble("grow 5a 1M").find("'5a' is not a name"), std::string::npos);
  EXPECT_NE(trouble("alias a 0 2M b 0").find("'0' is not a number of times from 1 to 9"),
            std::string::npos);
  EXPECT_NE(trouble("hold now").find("the form is: hold"), std::string::npos);
}

}  // namespace
}  // namespace stillmap::tool
