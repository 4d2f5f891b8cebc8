// The fixture of tests that run the program `stillmap`.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/gpu_test.h"

namespace stillmap::testing {

struct ran {
  int status = -1;
  std::string out, err;
  std::string last_line() const;
};

std::string content(const std::filesystem::path &p);

class command_test : public device_test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // STILLMAP_TOOL, what CMake built, or what Bazel put beside the test.
  static std::string program();
  // Runs the command by a shell: `arguments` are its words, redirections and variables included.
  ran run(const std::string &arguments, const std::string &before = "") const;
  // One line on standard error, and nothing on standard output.
  void expect_failure(const std::string &arguments, int status, const std::string &says) const;
  void expect_usage(const std::string &arguments, const std::string &says) const {
    expect_failure(arguments, 2, says);
  }

  std::filesystem::path folder_;  // empty at first, gone afterwards
};

}  // namespace stillmap::testing
