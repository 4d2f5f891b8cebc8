// A controlled process: memory with tags, a control server, and a log of its callbacks.
#pragma once

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "tests/checkpoint/control/memory.h"
#include "tests/support/buffer_test.h"

namespace stillmap::control::testing {

class control_test : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override;
  void TearDown() override;

  void make_memory() { memory_.emplace(weights_and_cache(dev())); }
  void start(server_options options = {});
  void stop() { server_.reset(); }

  const std::string &where() const { return where_; }
  client ask() const { return client(where_); }
  std::string file(const std::string &name) const { return folder_ + "/" + name; }
  std::size_t files() const;
  // Options whose callbacks log what happens: "stop weights", "go weights", ...
  server_options written_down();
  std::vector<std::string> seen() const;
  ::testing::AssertionResult memory_is_whole() const { return is_whole(dev()); }

 private:
  void see(const char *what, server_callbacks::tags_view tags);

  std::string where_, folder_;
  std::optional<checkpoint::restored_memory> memory_;
  std::optional<server> server_;
  mutable std::mutex mutex_;
  std::vector<std::string> seen_;
};

}  // namespace stillmap::control::testing
