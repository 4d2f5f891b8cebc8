// stillmap task hold, published and withdraw: a holder in a process of its own, and its service.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "stillmap/checkpoint/publication/attached_memory.h"
#include "stillmap/vmm/growable_buffer.h"
#include "tests/support/unique_name.h"
#include "tests/tool/task_test.h"

namespace stillmap::testing {
namespace {

class published_commands : public task_test {
 protected:
  void SetUp() override {
    task_test::SetUp();
    if (IsSkipped()) return;
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
    start_task();
  }
  void start_holder(const std::string &more = "") {
    start_process("holder", "task hold " + holder_ + ' ' + more);
    once("holder.out", "max_descriptors");
  }
  void publish_all() {
    const std::vector<std::string> tags{"weights", "cache"};
    const auto done = publication::publish(dev(), holder_, "model", tags);
    ASSERT_TRUE(done) << done.error().message();
  }
  result<publication::attached_memory> attach() const {
    publication::attach_options options;
    options.where = checkpoint::placement::anywhere;
    return publication::attach(dev(), holder_, "model", options);
  }

  const std::string holder_ = '@' + unique_name("stillmap-published");
};

TEST_F(published_commands, show_and_withdraw_what_a_holder_keeps) {
  start_holder("--json");
  expect(run("task published " + holder_), 0, {"nothing is published at " + holder_});
  publish_all();
  auto one = attach(), two = attach();
  ASSERT_TRUE(one && two);
  const std::string pid = std::to_string(::getpid());
  expect(run("task published " + holder_), 0,
         {"name   generation", "model           1", pid + "  " + pid + " (2)"});
  expect(run("task published --json " + holder_), 0,
         {"\"name\": \"model\"", "\"generation\": 1", "\"newest\": true", "\"publisher\": " + pid});
  two = tl::unexpected(error());
  expect(run("task withdraw " + holder_ + " model"), 0,
         {"stillmap: ok: withdrew generation 1 of model"});
  expect(run("task published " + holder_), 0, {"(superseded, or withdrawn)"});
  expect_failure("task withdraw " + holder_ + " model", 2, "nothing is published under this name");
  EXPECT_FALSE(attach());
}

// A task that has attached memory: it is freed by nobody's suspension, and a snapshot refers to it.
TEST_F(published_commands, leave_attached_memory_to_its_holder) {
  start_holder("--json");
  {
    const auto pool =
        page_pool::create(dev(), {.exportable = handle_type::posix_fd, .keep_free = 0});
    auto buffer = growable_buffer::create(dev(), {.tag = "model", .pools = {*pool}});
    ASSERT_TRUE(buffer && buffer->resize(2 * page()));
    ASSERT_TRUE(publication::publish(dev(), holder_, "model", std::vector<std::string>{"model"}));
  }
  const auto read = attach();
  ASSERT_TRUE(read) << read.error().message();
  expect(run("task suspend " + where_ + " --all"), 0, {"all tags suspended"});
  EXPECT_EQ(dev().space().mappings(read->tagged("model")[0]).size(), 2u);
  EXPECT_EQ(run("task resume " + where_ + " --all").status, 0);
  const std::string image = file("all.smi");
  EXPECT_EQ(run("task snapshot " + where_ + " --all -o " + image).status, 0);
  stop_task();
  expect(run("image restore " + image), 0, {"published, ", "model: attach model from a holder"});
}

TEST_F(published_commands, a_holder_says_what_would_be_lost) {
  start_holder("--json");
  publish_all();
  ::kill(processes_.at("holder"), SIGTERM);
  once("holder.err", "has no readers and would be lost");
  EXPECT_TRUE(attach());
  // The holder notices the end of that reader by itself.
  while (!publication::list(holder_)->front().readers.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::kill(processes_.at("holder"), SIGTERM);
  EXPECT_EQ(ended("holder"), 1);
  once("holder.err", "(model), unless its publisher still has it");
}

TEST_F(published_commands, a_holder_without_memory_ends) {
  start_holder("--json");
  ::kill(processes_.at("holder"), SIGTERM);
  EXPECT_EQ(ended("holder"), 0);
  expect_failure("task published " + holder_, 3, holder_);
}

TEST_F(published_commands, a_service_ends_when_it_is_asked) {
  start_holder("--json --end-at-once");
  publish_all();
  ::kill(processes_.at("holder"), SIGTERM);
  EXPECT_EQ(ended("holder"), 1);
}

}  // namespace
}  // namespace stillmap::testing
