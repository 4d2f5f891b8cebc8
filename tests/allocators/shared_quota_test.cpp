#include "stillmap/allocators/shared_quota.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "stillmap/allocators/admission/quota_table.h"
#include "tests/support/unique_name.h"

namespace stillmap {
namespace {

class shared_quota_test : public ::testing::Test {
 protected:
  void TearDown() override { (void)shared_quota::remove(path_); }
  std::shared_ptr<shared_quota> join(std::uint64_t limit = 100) const {
    auto q = shared_quota::open(path_, {.limit = limit});
    if (!q) throw std::runtime_error(q.error().message());
    return *q;
  }
  // A participant's entry in the file.
  quota_share entry(std::size_t i) const {
    quota_share s;
    std::ifstream file(path_, std::ios::binary);
    file.seekg(offset_of(i));
    EXPECT_TRUE(file.read(reinterpret_cast<char *>(&s), sizeof s));
    return s;
  }
  void set_entry(std::size_t i, const quota_share &s) const {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(offset_of(i));
    EXPECT_TRUE(file.write(reinterpret_cast<const char *>(&s), sizeof s));
  }
  static std::streamoff offset_of(std::size_t i) {
    return static_cast<std::streamoff>(offsetof(quota_table, shares) + i * sizeof(quota_share));
  }
  const std::string path_ = ::testing::TempDir() + "stillmap-quota-" + std::to_string(getpid());
};

TEST_F(shared_quota_test, participants_share_one_limit) {
  const auto a = join(), b = join(0);
  ASSERT_TRUE(a->reserve(60));
  const status refused = b->reserve(41);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::out_of_memory));
  EXPECT_EQ(refused.error().value, 41u);
  EXPECT_EQ(refused.error().limit, 40u);
  ASSERT_TRUE(b->reserve(40));
  ASSERT_TRUE(a->release(10));
  ASSERT_TRUE(b->reserve(10));
  const auto s = a->stats();
  ASSERT_TRUE(s);
  EXPECT_EQ(s->limit, 100u);
  EXPECT_EQ(s->reserved, 100u);
  EXPECT_EQ(s->own, 50u);
  EXPECT_EQ(s->participants.size(), 2u);
}

TEST_F(shared_quota_test, what_leaves_gives_back) {
  const auto a = join();
  {
    const auto b = join();
    ASSERT_TRUE(b->reserve(100));
    EXPECT_FALSE(a->reserve(1));
  }
  EXPECT_TRUE(a->reserve(100));
  EXPECT_EQ(a->stats()->participants.size(), 1u);
}

TEST_F(shared_quota_test, refuses_what_makes_no_sense) {
  EXPECT_FALSE(shared_quota::open("", {.limit = 100}));
  const auto none = shared_quota::open(path_, {.limit = 0});
  ASSERT_FALSE(none);
  EXPECT_TRUE(none.error().is(errc::invalid_argument));
  const auto a = join();
  const auto other = shared_quota::open(path_, {.limit = 101});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().value, 101u);
  EXPECT_EQ(other.error().limit, 100u);
  ASSERT_TRUE(a->reserve(5));
  const status more = a->release(6);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().value, 6u);
  EXPECT_EQ(more.error().limit, 5u);
  EXPECT_EQ(a->stats()->own, 5u);
  EXPECT_FALSE(a->set_limit(0));
  EXPECT_FALSE(a->reserve(UINT64_MAX)) << "sums do not wrap";
  EXPECT_FALSE(shared_quota::open("/nowhere/at/all", {.limit = 100}));
}

TEST_F(shared_quota_test, a_file_that_is_something_else_stays_as_it_is) {
  std::ofstream(path_) << "my diary";
  const auto q = shared_quota::open(path_, {.limit = 100});
  ASSERT_FALSE(q);
  EXPECT_TRUE(q.error().is(errc::corrupt)) << q.error().message();
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "my diary");
}

// A bare name, which is a file in /dev/shm: everybody can create one there.
class shared_quota_name : public ::testing::Test {
 protected:
  void TearDown() override { (void)::unlink(planted_.c_str()); }
  const std::string name_ = testing::unique_name("stillmap-quota");
  const std::string planted_ = "/dev/shm/" + name_;
};

// Regression: the ledger was written into the file that the link names.
TEST_F(shared_quota_name, that_is_a_link_is_refused) {
  const std::string victim = ::testing::TempDir() + name_;
  std::ofstream(victim).flush();
  ASSERT_EQ(::symlink(victim.c_str(), planted_.c_str()), 0);
  const auto q = shared_quota::open(name_, {.limit = 100});
  ASSERT_FALSE(q);
  EXPECT_EQ(q.error().code, std::errc::too_many_symbolic_link_levels) << q.error().message();
  EXPECT_EQ(std::filesystem::file_size(victim), 0u);
  std::filesystem::remove(victim);
}

// Regression: others who may write it decide what everybody has left.
TEST_F(shared_quota_name, that_others_may_write_is_refused) {
  ASSERT_TRUE(shared_quota::open(name_, {.limit = 100}));
  ASSERT_TRUE(shared_quota::open(name_, {.limit = 100})) << "one's own";
  ASSERT_EQ(::chmod(planted_.c_str(), 0666), 0);
  const auto q = shared_quota::open(name_, {.limit = 100});
  ASSERT_FALSE(q);
  EXPECT_EQ(q.error().code, std::errc::operation_not_permitted) << q.error().message();
}

TEST_F(shared_quota_name, that_another_user_owns_is_refused) {
  ASSERT_TRUE(shared_quota::open(name_, {.limit = 100}));
  if (::chown(planted_.c_str(), 1, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "needs root, and users that a user namespace maps, to give a file away";
  }
  const auto q = shared_quota::open(name_, {.limit = 100});
  ASSERT_FALSE(q);
  EXPECT_EQ(q.error().code, std::errc::operation_not_permitted) << q.error().message();
}

TEST_F(shared_quota_name, that_is_a_pipe_is_refused) {
  ASSERT_EQ(::mkfifo(planted_.c_str(), 0600), 0);
  EXPECT_FALSE(shared_quota::open(name_, {.limit = 100}));
  EXPECT_FALSE(shared_quota::observe(name_, ::geteuid()));
}

TEST_F(shared_quota_name, can_be_observed_by_one_that_waits_for_nobody) {
  const auto q = shared_quota::open(name_, {.limit = 100, .terms = {.minimum = 5}});
  ASSERT_TRUE(q) << q.error().message();
  ASSERT_TRUE((*q)->reserve(10));
  // As of a process that is stopped, or means harm.
  const int fd = ::open(planted_.c_str(), O_RDWR | O_CLOEXEC);
  struct flock l = {};
  l.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(fd, F_OFD_SETLK, &l), -1) << "a participant holds its slot";
  l.l_len = 1;
  ASSERT_EQ(::fcntl(fd, F_OFD_SETLK, &l), 0);
  const auto begun = std::chrono::steady_clock::now();
  const auto seen = shared_quota::observe(name_, ::geteuid());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, shared_quota::lock_timeout / 2);
  ::close(fd);
  ASSERT_TRUE(seen) << seen.error().message();
  EXPECT_EQ(seen->stats.limit, 100u);
  ASSERT_EQ(seen->stats.participants.size(), 1u);
  EXPECT_EQ(seen->stats.participants[0].reserved, 10u);
  EXPECT_EQ(seen->stats.participants[0].terms.minimum, 5u);
  ASSERT_FALSE(seen->events.empty());
  EXPECT_EQ(seen->events[0].action, quota_action::joined);
  const auto code_of = [&](std::uint32_t owner) {
    const auto o = shared_quota::observe(name_, owner);
    return o ? std::error_code() : o.error().code;
  };
  EXPECT_EQ(code_of(::geteuid() + 1), std::errc::operation_not_permitted) << "another user's";
  ASSERT_EQ(::chmod(planted_.c_str(), 0666), 0);
  EXPECT_EQ(code_of(::geteuid()), std::errc::operation_not_permitted) << "others may write it";
}

TEST_F(shared_quota_name, that_a_hostile_user_wrote_is_observed_within_bounds) {
  const auto is_refused = [&] { return !shared_quota::observe(name_, ::geteuid()); };
  EXPECT_TRUE(is_refused()) << "there is none";
  EXPECT_FALSE(shared_quota::observe(planted_, ::geteuid())) << "a path";
  EXPECT_FALSE(shared_quota::observe("..", ::geteuid()));
  std::ofstream(planted_).flush();
  ASSERT_EQ(::chmod(planted_.c_str(), 0600), 0);
  EXPECT_TRUE(is_refused()) << "empty";
  // Without an end, and with numbers that nobody would write.
  ASSERT_EQ(::truncate(planted_.c_str(), off_t{1} << 40), 0);
  EXPECT_TRUE(is_refused()) << "zeros";
  const auto table = std::make_unique<quota_table>();
  std::memset(static_cast<void *>(table.get()), 0xff, sizeof *table);
  table->header.magic = quota_table::magic;
  const auto write = [&] {
    std::fstream file(planted_, std::ios::binary | std::ios::in | std::ios::out);
    EXPECT_TRUE(file.write(reinterpret_cast<const char *>(table.get()), sizeof *table));
  };
  write();
  EXPECT_TRUE(is_refused()) << "more slots than there can be";
  table->header.used = quota_table::max_slots;
  write();
  EXPECT_TRUE(is_refused()) << "entries that are not whole";
  for (quota_share &s : table->shares) s.holding = quota_holding::of(UINT64_MAX, 4711);
  write();
  const auto seen = shared_quota::observe(name_, ::geteuid());
  ASSERT_TRUE(seen) << seen.error().message();
  EXPECT_TRUE(seen->stats.participants.empty()) << "no process holds a slot";
  EXPECT_LE(seen->events.size(), quota_table::max_events);
  const std::string link = planted_ + "-link";
  ASSERT_EQ(::symlink(planted_.c_str(), link.c_str()), 0);
  EXPECT_FALSE(shared_quota::observe(name_ + "-link", ::geteuid()));
  ::unlink(link.c_str());
}

TEST_F(shared_quota_test, a_lower_limit_takes_nothing_away) {
  const auto a = join();
  ASSERT_TRUE(a->reserve(80));
  ASSERT_TRUE(a->set_limit(50));
  EXPECT_EQ(a->stats()->own, 80u);
  EXPECT_FALSE(a->reserve(1));
  ASSERT_TRUE(a->release(40));
  EXPECT_TRUE(a->reserve(10));
  EXPECT_FALSE(a->reserve(1));
}

TEST_F(shared_quota_test, threads_of_one_participant) {
  const auto q = join(1000);
  std::atomic<std::uint64_t> held{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        if (!q->reserve(300)) continue;
        const std::uint64_t now = held += 300;
        for (std::uint64_t m = most; m < now && !most.compare_exchange_weak(m, now);) {
        }
        held -= 300;
        EXPECT_TRUE(q->release(300));
      }
    });
  }
  for (auto &t : threads) t.join();
  EXPECT_LE(most, 1000u);
  EXPECT_EQ(q->stats()->reserved, 0u);
}

// The child has none of its parent's share, cannot spend it, and does not keep it alive.
TEST_F(shared_quota_test, a_fork_takes_no_part) {
  const auto observer = join();
  int to_parent[2], to_child[2];
  ASSERT_EQ(pipe(to_parent), 0);
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t middle = fork();
  if (middle == 0) {
    const auto q = shared_quota::open(path_, {.limit = 100});
    if (!q || !(*q)->reserve(70)) _exit(1);
    const pid_t inner = fork();
    if (inner == 0) {
      const status s = (*q)->reserve(1);
      const char verdict = !s && s.error().is(errc::not_supported) ? 'y' : 'n';
      (void)!write(to_parent[1], &verdict, 1);
      char go = 0;
      (void)!read(to_child[0], &go, 1);  // outlives its parent
      _exit(0);
    }
    _exit(0);
  }
  char verdict = 0;
  ASSERT_EQ(read(to_parent[0], &verdict, 1), 1);
  EXPECT_EQ(verdict, 'y');
  int exit_status = 0;
  ASSERT_EQ(waitpid(middle, &exit_status, 0), middle);
  EXPECT_EQ(exit_status, 0);
  EXPECT_TRUE(observer->reserve(100)) << "the dead participant's child still holds its share";
  (void)!write(to_child[1], "x", 1);
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) close(fd);
}

// Runs `act` in a child, so that what would end this process is seen; returns how the child ended.
template <class Act>
int how_a_child_ends(Act act) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(act() ? 0 : 1);
  }
  int how = 0;
  EXPECT_EQ(waitpid(child, &how, 0), child);
  return how;
}

bool is_corrupt(const auto &r) {
  return !r && r.error().is(errc::corrupt);
}

TEST_F(shared_quota_test, a_truncated_file_ends_no_participant) {
  const int how = how_a_child_ends([&] {
    const auto q = join();
    if (!q->reserve(10)) return false;
    for (const int bytes : {0, 100, 4096}) {
      if (truncate(path_.c_str(), bytes) != 0) return false;
      if (!is_corrupt(q->stats()) || !is_corrupt(q->reserve(1)) || !is_corrupt(q->release(1)) ||
          !is_corrupt(q->set_limit(5)) || !is_corrupt(shared_quota::open(path_, {.limit = 100}))) {
        return false;
      }
      if (std::filesystem::file_size(path_) != static_cast<std::uintmax_t>(bytes)) return false;
    }
    return true;
  });
  EXPECT_FALSE(WIFSIGNALED(how)) << strsignal(WTERMSIG(how));
  EXPECT_EQ(how, 0);
}

TEST_F(shared_quota_test, a_file_that_was_overwritten_is_left_alone) {
  const auto q = join();
  ASSERT_TRUE(q->reserve(10));
  const std::string foreign(std::filesystem::file_size(path_), 'x');
  std::ofstream(path_) << foreign;
  EXPECT_TRUE(is_corrupt(q->reserve(1)));
  const status s = q->release(1);
  ASSERT_TRUE(is_corrupt(s));
  EXPECT_EQ(s.error().detail().subject, path_);
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, foreign);
}

TEST_F(shared_quota_test, an_entry_that_stays_damaged_is_named) {
  const auto a = join(), b = join(0);
  ASSERT_TRUE(b->reserve(10));
  quota_share of_b = entry(1);
  of_b.holding.reserved = 11;  // its checksum is of 10
  set_entry(1, of_b);
  const auto s = a->stats();
  ASSERT_TRUE(is_corrupt(s));
  EXPECT_EQ(s.error().value, 1u);
  EXPECT_TRUE(is_corrupt(a->reserve(1)));
}

TEST_F(shared_quota_test, an_entry_that_is_another_participants_is_no_longer_used) {
  const auto a = join(), b = join(0);
  ASSERT_TRUE(a->reserve(10) && b->reserve(20));
  set_entry(0, entry(1));
  EXPECT_TRUE(is_corrupt(a->reserve(1)));
  EXPECT_TRUE(b->reserve(1));
}

// A ledger that was truncated while it is in use must not be taken for a new one: the bytes that others
// hold would be granted again.
TEST_F(shared_quota_test, a_truncated_file_is_not_created_anew) {
  const auto q = join();
  ASSERT_TRUE(q->reserve(100));
  ASSERT_EQ(truncate(path_.c_str(), 0), 0);
  EXPECT_TRUE(is_corrupt(shared_quota::open(path_, {.limit = 100})));
}

TEST_F(shared_quota_test, a_stopped_participant_is_named_and_blocks_no_release) {
  const auto q = join();
  ASSERT_TRUE(q->reserve(10));
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const auto own = join();
    const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    struct flock l = {};
    l.l_type = F_WRLCK;
    l.l_len = 1;
    if (fcntl(fd, F_OFD_SETLK, &l) == 0) (void)!write(ready[1], "x", 1);
    for (;;) raise(SIGSTOP);
  }
  char locked = 0;
  ASSERT_EQ(read(ready[0], &locked, 1), 1);
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  auto reserving = std::async(std::launch::async, [&] { return q->reserve(1); });
  auto releasing = std::async(std::launch::async, [&] { return q->release(1); });
  const bool free = releasing.wait_for(std::chrono::seconds(1)) == std::future_status::ready;
  const bool ended = reserving.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(free) << "release() waits for a stopped process";
  EXPECT_TRUE(releasing.get());
  ASSERT_TRUE(ended) << "reserve() waits for a stopped process without limit";
  const status s = reserving.get();
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::busy)) << s.error().message();
  EXPECT_EQ(s.error().detail().found, "process " + std::to_string(child)) << s.error().message();
  EXPECT_TRUE(q->reserve(1)) << "the kernel drops the lock of a dead process";
  for (const int fd : ready) close(fd);
}

}  // namespace
}  // namespace stillmap
