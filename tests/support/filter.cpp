#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace {

bool variable_is(const char *name, std::string_view value) {
  const char *const is = std::getenv(name);
  return is != nullptr && is == value;
}

// A program whose filter matches none of its tests fails: a misspelled name would pass. ./test asks all
// programs for the tests of a filter, and counts them itself (STILLMAP_TEST_NO_MATCH=ok).
class filter_must_match : public ::testing::EmptyTestEventListener {
 public:
  void OnTestIterationStart(const ::testing::UnitTest &program, int) override {
    const std::string filter = GTEST_FLAG_GET(filter);
    if (filter.empty() || filter == "*" || program.test_to_run_count() != 0) return;
    // Of a program in shards, the first has the first test that matches.
    const char *const shard = std::getenv("GTEST_SHARD_INDEX");
    const bool is_first = shard == nullptr || std::string_view(shard) == "0";
    if (is_first && !variable_is("STILLMAP_TEST_NO_MATCH", "ok")) {
      ADD_FAILURE() << "no test of this program matches the filter '" << filter << "'";
    }
  }
};

[[maybe_unused]] const bool filter_is_checked = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new filter_must_match);
  return true;
}();

}  // namespace
