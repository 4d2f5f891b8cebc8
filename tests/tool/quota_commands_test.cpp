// stillmap quota: the operator's view of memory that processes share.
#include <unistd.h>

#include <string>

#include "stillmap/allocators/shared_quota.h"
#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

class quota_commands : public command_test {
 protected:
  void SetUp() override {
    command_test::SetUp();
    if (IsSkipped()) return;
    path_ = (folder_ / "gpu0").string();
    const auto made =
        shared_quota::open(path_, {.limit = std::uint64_t{8} << 30,
                                   .terms = {.minimum = std::uint64_t{1} << 30, .priority = 2},
                                   .timeout = std::chrono::milliseconds(0)});
    ASSERT_TRUE(made) << made.error().message();
    quota_ = *made;
    ASSERT_TRUE(quota_->reserve(std::uint64_t{3} << 30));
  }
  void TearDown() override {
    quota_.reset();
    command_test::TearDown();
  }
  // Succeeds, and prints these in any order.
  ran says(const std::string &arguments, std::initializer_list<std::string> all) const {
    const ran r = run(arguments);
    EXPECT_EQ(r.status, 0) << r.err;
    for (const std::string &one : all) {
      EXPECT_NE(r.out.find(one), std::string::npos) << one << " is not in:\n" << r.out;
    }
    return r;
  }
  const std::string pid_ = std::to_string(::getpid());
  std::string path_;
  std::shared_ptr<shared_quota> quota_;
};

TEST_F(quota_commands, show_who_holds_what) {
  const auto cached =
      quota_->add_reclaimer(reclaim_kind::cached, [](std::uint64_t) -> std::uint64_t { return 0; });
  says("quota status " + path_,
       {path_ + ": 3 GiB of 8 GiB reserved by 1 participant, revision 0",
        pid_ + "       3 GiB       1 GiB           -         2", "cached, where it polls"});
  says("quota status --json " + path_,
       {"\"limit_bytes\": 8589934592", "\"reserved_bytes\": 3221225472", "\"pid\": " + pid_,
        "\"maximum_bytes\": null", "\"offers\": [", "\"cached\"", "\"listens\": false"});
  EXPECT_FALSE(quota_->make_room(std::uint64_t{6} << 30));
  says("quota watch --for 0.01 " + path_,
       {"process " + pid_ + " joined", "process " + pid_ + " did not get 6 GiB, after "});
  const ran lines = says("quota watch --json --for 0.01 " + path_, {"\"action\": \"busy\""});
  EXPECT_EQ(lines.out.front(), '{');
}

TEST_F(quota_commands, change_limits_and_terms) {
  says("quota set --limit 4G " + path_, {"applied\n"});
  says("quota set --limit 2G --json " + path_, {"\"change\": \"deferred\""});
  expect_failure("quota set --limit 512M " + path_, 2,
                 "the limit is less than the minima of the participants");
  expect_failure("quota set --limit 4G --if-revision 0 " + path_, 4,
                 "the limit or terms have changed meanwhile");
  says("quota set --limit 8G --if-revision 2 " + path_, {"applied\n"});
  says("quota set --pid " + pid_ + " --maximum 2G --priority -1 " + path_, {"deferred"});
  says("quota status " + path_, {"1 GiB       2 GiB        -1"});
  expect_failure("quota set --pid " + pid_ + " --minimum 9G --maximum 9G " + path_, 1,
                 "not enough memory for a minimum of 9 GiB: of the limit of 8 GiB the minima of "
                 "others leave 8 GiB");
  expect_failure("quota set --pid 1 --minimum 1G " + path_, 3,
                 "no participant has the process id 1");
}

TEST_F(quota_commands, say_what_is_wrong) {
  expect_failure("quota status " + path_ + ".none", 3, "No such file or directory");
  expect_usage("quota set " + path_, "give either --limit, or --pid and its terms");
  expect_usage("quota set --priority 1 " + path_, "--pid goes with");
  expect_usage("quota set --pid 5 --priority much " + path_, "'much' is not a whole number");
  expect_usage("quota set --limit lots " + path_, "lots");
}

}  // namespace
}  // namespace stillmap::testing
