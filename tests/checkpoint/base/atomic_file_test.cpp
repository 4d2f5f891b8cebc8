// Names of temporary files. Writing them is tested with images, of which each call fails in turn.
#include "stillmap/checkpoint/base/atomic_file.h"

#include <gtest/gtest.h>

namespace stillmap::checkpoint {
namespace {

// Regression: ".plain.smi.backup" was taken for a temporary file of plain.smi, and removed.
TEST(temporary_names, say_what_they_are_for) {
  EXPECT_EQ(target_of_temporary(".a.smi.stillmap-abc123"), "a.smi");
  EXPECT_EQ(target_of_temporary(".a.stillmap-abcxyz"), "a");
  const std::string_view shortest = ".a.stillmap-abcxyz";
  for (std::size_t n = 0; n < shortest.size(); ++n) {
    EXPECT_EQ(target_of_temporary(shortest.substr(0, n)), "") << n;
  }
  for (const char *other : {".plain.smi.backup", "a.stillmap-abcxyz", "..stillmap-abcxyz",
                            ".a.stillmap-abcxy", ".a.stillmap-abcxyzz", ".a.stillmap-abcXyz",
                            ".a.stillmap-abc-yz", ".a-stillmap-abcxyz", ".stillmap-abcxyz"}) {
    EXPECT_EQ(target_of_temporary(other), "") << other;
  }
}

}  // namespace
}  // namespace stillmap::checkpoint
