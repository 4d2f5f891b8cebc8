#include "tests/checkpoint/control/task.h"

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>

namespace stillmap::control::testing {

void control_test::SetUp() {
  buffer_test::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  STILLMAP_NEEDS_VMM();
  std::string name = ::testing::TempDir() + "/stillmap-control-XXXXXX";
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  folder_ = name;
  where_ = new_place();
}

void control_test::TearDown() {
  server_.reset();
  memory_.reset();
  if (!folder_.empty()) std::filesystem::remove_all(folder_);
  buffer_test::TearDown();
}

void control_test::start(server_options options) {
  auto made = server::create(dev(), where_, std::move(options));
  if (!made) throw std::runtime_error(made.error().message());
  server_.emplace(std::move(*made));
}

std::size_t control_test::files() const {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_),
                                                std::filesystem::directory_iterator()));
}

void control_test::see(const char *what, server_callbacks::tags_view tags) {
  std::string line = what;
  for (const std::string &t : tags) line += " " + t;
  const std::lock_guard lock(mutex_);
  seen_.push_back(std::move(line));
}

std::vector<std::string> control_test::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

server_options control_test::written_down() {
  server_options o;
  o.task.quiesce = [this](auto tags, auto) {
    see("stop", tags);
    return status{};
  };
  o.task.resume = [this](auto tags) { see("go", tags); };
  o.task.released = [this](auto tags) { see("given", tags); };
  return o;
}

}  // namespace stillmap::control::testing
