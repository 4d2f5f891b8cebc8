// The fixture of tests that run programs with the preload.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace stillmap::testing {

// The path of a program or library of tests/BUILD.
std::string built_for_preload(const std::string &name);

// Starts a program; -1: it cannot be started.
pid_t spawn(std::vector<std::string> words, std::vector<std::string> environment,
            const posix_spawn_file_actions_t &actions);
// What it exited with; 128 + the signal that ended it; -1: it cannot be waited for.
int wait_for(pid_t pid);

// How a client is run.
struct client_setting {
  bool preloaded = true;
  std::string before, behind;  // names of other libraries to preload, before and behind Stillmap's
  std::vector<std::string> variables;  // "NAME=value"
};

struct client_result {
  int status = -1;  // what it exited with; 128 + the signal that ended it
  std::string out, err;
  std::string statistics;  // the text of the statistics file; empty: none was written

  // A number of the statistics, summed over devices; of passed_on: {"calls": n} of a kind.
  std::uint64_t total(const std::string &field) const;
  std::uint64_t passed_on(const std::string &kind) const;
  // The number behind "blocks " in what it printed; -1: none.
  long blocks() const;
};

class preload_test : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  static std::string built(const std::string &name) { return built_for_preload(name); }
  static std::string clients_folder();
  static std::string preload_library();
  static std::string driver_library();
  static std::string profile();

  client_result run(const std::string &client, const std::vector<std::string> &arguments,
                    const client_setting &setting = {}) const;
  // The variables of a client.
  std::vector<std::string> environment(const client_setting &setting) const;
  std::string file(const std::string &name) const { return (folder_ / name).string(); }
  static std::string content(const std::string &file);

  // All blocks came from Stillmap, and it was all that it had to serve.
  static void expect_served(const client_result &r);

 private:
  std::filesystem::path folder_;
};

}  // namespace stillmap::testing
