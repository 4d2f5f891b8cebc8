#include "stillmap/vmm/base/version.h"

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(version, the_string_is_made_of_the_numbers) {
  EXPECT_EQ(STILLMAP_VERSION_STRING, std::to_string(STILLMAP_VERSION_MAJOR) + "." +
                                         std::to_string(STILLMAP_VERSION_MINOR) + "." +
                                         std::to_string(STILLMAP_VERSION_PATCH));
  static_assert(STILLMAP_VERSION < STILLMAP_MAKE_VERSION(STILLMAP_VERSION_MAJOR + 1, 0, 0));
}

}  // namespace
