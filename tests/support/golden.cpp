#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace stillmap::testing {

void expect_golden(const std::string &path, const std::string &text) {
  if (std::getenv("STILLMAP_UPDATE_GOLDEN") != nullptr) {
    const char *workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
    std::ofstream((workspace != nullptr ? workspace + std::string("/") : "") + path) << text;
    return;
  }
  std::ifstream in(path);
  ASSERT_TRUE(in) << path << " is missing: run from the top of the source tree";
  std::stringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(text, golden.str()) << "differs from " << path
                                << "; STILLMAP_UPDATE_GOLDEN=1 rewrites the file";
}

}  // namespace stillmap::testing
