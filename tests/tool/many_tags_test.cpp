// Tasks with more tags than a response of status lists.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/vmm/reservation.h"
#include "tests/checkpoint/control/memory.h"
#include "tests/support/buffer_test.h"
#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

constexpr std::size_t tag_count = 4200;  // a response lists 4,096

class many_tags : public command_test {
 protected:
  void SetUp() override {
    command_test::SetUp();
    if (IsSkipped()) return;
    device_.emplace(open_device());
    if (!device_->capabilities().vmm) GTEST_SKIP() << "this device has no pages to save";
    // "weights" and "cache" have pages; the others are addresses only, and come before them.
    memory_.emplace(control::testing::weights_and_cache(*device_));
    for (std::size_t i = 2; i < tag_count; ++i) {
      reservation_options options;
      options.tag = "a tag, number " + std::to_string(i);
      options.hint = device_address(control::testing::cache_at + (i << 30));
      auto made = reservation::create(*device_, device_->capabilities().page_bytes, options);
      ASSERT_TRUE(made) << made.error().message();
      addresses_.push_back(std::move(*made));
    }
    where_ = control::testing::new_place() + ".control";
    control::server_options how;
    how.task.quiesce = [this](auto tags, auto) {
      stopped_ = tags.size();
      return status();
    };
    how.task.released = [this](auto tags) { released_ = tags.size(); };
    auto made = control::server::create(*device_, where_, std::move(how));
    ASSERT_TRUE(made) << made.error().message();
    server_.emplace(std::move(*made));
  }
  void TearDown() override {
    if (receiver_ > 0) {
      ::kill(receiver_, SIGKILL);
      ::waitpid(receiver_, nullptr, 0);
    }
    server_.reset();
    addresses_.clear();
    memory_.reset();
    device_.reset();
    command_test::TearDown();
  }
  std::string file(const std::string &name) const { return (folder_ / name).string(); }
  std::size_t tags_in(const std::string &image) const {
    const auto r = image::reader::open(image);
    EXPECT_TRUE(r) << r.error().message();
    return r ? r->manifest().tags.size() : 0;
  }
  std::string fingerprint(const char *who) const {
    return migration::fingerprint_of(
               migration::load_credentials(file(who) + "/certificate.pem", "").value())
        .value();
  }

  std::optional<device> device_;
  std::optional<checkpoint::restored_memory> memory_;
  std::vector<reservation> addresses_;
  std::string where_;
  std::optional<control::server> server_;
  std::size_t stopped_ = 0, released_ = 0;
  pid_t receiver_ = -1;
};

// Regression: the command asked status for the tags, which lists 4,096, and saved those.
TEST_F(many_tags, a_snapshot_of_all_has_all) {
  const ran r = run("task snapshot " + where_ + " --all -o '" + file("a.smi") + "'");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(tags_in(file("a.smi")), tag_count);
  EXPECT_EQ(stopped_, tag_count);
}

// Regression: a migration ended with "now owned by", and left 104 tags behind.
TEST_F(many_tags, a_migration_of_all_has_all) {
  for (const char *who : {"here", "there"}) {
    ASSERT_EQ(run(std::string("task migrate credentials '") + file(who) + "' --name " + who).status,
              0);
    std::filesystem::create_directory(file(std::string("records-") + who));
  }
  const std::string holder = control::testing::new_place();
  const std::string line = "exec '" + program() + "' task migrate receive 127.0.0.1:0 --control '" +
                           holder + "' --credentials '" + file("there") + "' --peer-fingerprint " +
                           fingerprint("here") + " --records '" + file("records-there") + "' >'" +
                           file("there.out") + "' 2>'" + file("there.err") + "' </dev/null";
  receiver_ = ::fork();
  if (receiver_ == 0) {
    ::execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char *>(nullptr));
    ::_exit(127);
  }
  std::string address;
  for (int i = 0; i < 6000 && address.empty(); ++i) {
    const std::string text = content(file("there.err")), before = "waiting at ";
    const std::size_t at = text.find(before), end = text.find("; our certificate");
    if (end != std::string::npos)
      address = text.substr(at + before.size(), end - at - before.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_NE(address, "") << content(file("there.err"));
  const ran sent = run("task migrate send " + where_ + " --all --to " + address +
                       " --credentials '" + file("here") + "' --peer-fingerprint " +
                       fingerprint("there") + " --records '" + file("records-here") + "'");
  ASSERT_EQ(sent.status, 0) << sent.err;
  EXPECT_EQ(stopped_, tag_count);
  EXPECT_EQ(released_, tag_count);
  const ran saved =
      run("task snapshot --timeout 30 '" + holder + "' --all -o '" + file("b.smi") + "'");
  ASSERT_EQ(saved.status, 0) << saved.err;
  EXPECT_EQ(tags_in(file("b.smi")), tag_count);
}

// Regression: `list` added up the tags that the response had room for.
TEST_F(many_tags, list_counts_all_of_them) {
  const ran r = run("task list --json");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::size_t at = r.out.find("\"socket\": \"" + where_ + "\"");
  ASSERT_NE(at, std::string::npos) << r.out.substr(0, 1000);
  EXPECT_NE(r.out.find("\"omitted_tags\": 104", at), std::string::npos);
}

}  // namespace
}  // namespace stillmap::testing
