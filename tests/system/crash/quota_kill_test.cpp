// Kills a thousand participants of a shared quota at random moments: the sum never exceeds the
// limit, and no capacity is lost.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "stillmap/allocators/shared_quota.h"

namespace stillmap {
namespace {

constexpr std::uint64_t kLimit = 1'000'000;
constexpr int kProcesses = 6;
constexpr int kKills = 1000;

// Written by the participants themselves, apart from the ledger: what each believes it holds,
// entered after it was reserved and struck out before it is released, so never more than it really
// does. A version is odd while its writer is at it; the epoch is odd while somebody is being
// killed.
struct beliefs {
  struct belief {
    std::atomic<std::uint64_t> version, held;
  };
  belief of[kProcesses];
  std::atomic<std::uint64_t> epoch, rounds, refused, seen, exceeded, reclaimed, too_long;

  void write(int me, std::uint64_t bytes) {
    ++of[me].version;
    of[me].held = bytes;
    ++of[me].version;
  }
  // One moment's sum: nothing may have changed between the first look and the second.
  void look() {
    std::array<std::uint64_t, kProcesses + 1> before{}, after{};
    const auto versions = [&](auto &into) {
      for (int i = 0; i < kProcesses; ++i) into[i] = of[i].version;
      into[kProcesses] = epoch;
    };
    versions(before);
    std::uint64_t sum = 0;
    for (const belief &b : of) sum += b.held;
    versions(after);
    if (before != after) return;
    for (const std::uint64_t v : before) {
      if (v % 2 != 0) return;
    }
    ++seen;
    if (sum > kLimit) ++exceeded;
  }
};

[[noreturn]] void take_part(const std::string &path, beliefs &all, int me, unsigned seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that fails leaves nobody behind
  std::mt19937 random(seed);
  for (;;) {
    const auto q = shared_quota::open(path, {.limit = kLimit});
    if (!q) _exit(3);
    std::uint64_t mine = 0;
    for (int i = 0; i < 50; ++i) {
      const std::uint64_t bytes = 1 + random() % (kLimit / 3);
      if (mine != 0 && random() % 2 == 0) {
        all.write(me, 0);
        if (!(*q)->release(mine)) _exit(4);
        mine = 0;
      } else if ((*q)->reserve(bytes)) {
        mine += bytes;
        all.write(me, mine);
      } else {
        ++all.refused;
      }
      all.look();
      ++all.rounds;
    }
    all.write(me, 0);
  }
}

TEST(quota_kill, a_thousand_deaths) {
  const std::string path = ::testing::TempDir() + "stillmap-quota-kill-" + std::to_string(getpid());
  auto *const all = static_cast<beliefs *>(
      mmap(nullptr, sizeof(beliefs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(all, MAP_FAILED);
  const auto observer = shared_quota::open(path, {.limit = kLimit});
  ASSERT_TRUE(observer) << observer.error().message();
  std::mt19937 random(20240611);
  pid_t running[kProcesses] = {};
  const auto start = [&](int i) {
    running[i] = fork();
    if (running[i] == 0) take_part(path, *all, i, static_cast<unsigned>(random()));
    ASSERT_GT(running[i], 0);
  };
  for (int i = 0; i < kProcesses; ++i) start(i);
  for (int killed = 0; killed < kKills; ++killed) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    const auto now = (*observer)->stats();
    ASSERT_TRUE(now);
    ASSERT_LE(now->reserved, kLimit);
    ++all->epoch;
    const int victim = static_cast<int>(random() % kProcesses);
    ASSERT_EQ(kill(running[victim], SIGKILL), 0);
    int how = 0;
    ASSERT_EQ(waitpid(running[victim], &how, 0), running[victim]);
    ASSERT_TRUE(WIFSIGNALED(how)) << "participant " << victim << " gave up by itself: " << how;
    all->of[victim].held = 0;
    all->of[victim].version += all->of[victim].version % 2;  // even, and never seen before
    ++all->epoch;
    start(victim);
  }
  ++all->epoch;
  for (const pid_t p : running) {
    kill(p, SIGKILL);
    waitpid(p, nullptr, 0);
  }
  EXPECT_EQ(all->exceeded, 0u);
  EXPECT_GT(all->seen, 1000u) << "they hardly lived: " << all->rounds << " rounds";
  EXPECT_GT(all->refused, 0u) << "the limit was never reached";
  EXPECT_TRUE((*observer)->reserve(kLimit)) << "capacity was lost with the dead";
  EXPECT_EQ((*observer)->stats()->participants.size(), 1u);
  EXPECT_TRUE(shared_quota::remove(path));
  munmap(all, sizeof(beliefs));
}

// ---- while they ask each other for memory ----

// One that holds memory in use and cached memory, gives the cached part back when it is asked, and waits for more.
class sharing_participant {
 public:
  sharing_participant(const std::string &path, beliefs &all, int me, unsigned seed)
      : all_(all), me_(me), random_(seed) {
    const auto q = shared_quota::open(
        path, {.limit = kLimit,
               .terms = {.minimum = me == 0 ? kLimit / 20 : 0, .priority = me % 3},
               .timeout = kTimeout});
    if (!q) _exit(3);
    quota_ = *q;
  }

  void run() {
    const auto cached = quota_->add_reclaimer(
        reclaim_kind::cached, [this](std::uint64_t bytes) { return give_back(bytes); });
    if (me_ % 2 == 0 && !quota_->start_thread()) _exit(5);
    for (int i = 0; i < 50; ++i) {
      step();
      if (!quota_->poll()) _exit(6);
      all_.look();
      ++all_.rounds;
    }
    const std::lock_guard lock(mutex_);
    all_.write(me_, 0);
  }

 private:
  std::uint64_t give_back(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t given = std::min(bytes, cached_);
    if (given == 0) return 0;
    all_.write(me_, used_ + cached_ - given);
    if (!quota_->release(given)) _exit(4);
    cached_ -= given;
    ++all_.reclaimed;
    return given;
  }
  void step() {
    const std::uint64_t bytes = 1 + random_() % (kLimit / 4);
    if (used_ != 0 && random_() % 2 == 0) {
      const std::lock_guard lock(mutex_);
      cached_ += std::exchange(used_, 0);
      return;
    }
    const auto began = std::chrono::steady_clock::now();
    const bool room = quota_->make_room(bytes).has_value();
    const auto waited = std::chrono::steady_clock::now() - began;
    if (waited > kTimeout + shared_quota::lock_timeout + std::chrono::seconds(20)) ++all_.too_long;
    if (!room) {
      ++all_.refused;
      return;
    }
    if (!quota_->reserve(bytes)) _exit(7);
    quota_->end_room();
    const std::lock_guard lock(mutex_);
    used_ += bytes;
    all_.write(me_, used_ + cached_);
  }

  static constexpr std::chrono::milliseconds kTimeout{50};
  beliefs &all_;
  const int me_;
  std::mt19937 random_;
  std::shared_ptr<shared_quota> quota_;
  std::mutex mutex_;
  std::uint64_t used_ = 0, cached_ = 0;
};

[[noreturn]] void share(const std::string &path, beliefs &all, int me, unsigned seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;; ++seed) sharing_participant(path, all, me, seed).run();
}

// Killed or stopped while memory is asked for and given back. STILLMAP_QUOTA_KILLS: how many times.
TEST(quota_kill, deaths_and_stops_while_memory_is_given_back) {
  const char *const more = std::getenv("STILLMAP_QUOTA_KILLS");
  const int rounds = more != nullptr ? std::atoi(more) : 1000;
  const std::string path =
      ::testing::TempDir() + "stillmap-quota-share-" + std::to_string(getpid());
  auto *const all = static_cast<beliefs *>(
      mmap(nullptr, sizeof(beliefs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(all, MAP_FAILED);
  const auto observer = shared_quota::open(path, {.limit = kLimit});
  ASSERT_TRUE(observer) << observer.error().message();
  std::mt19937 random(20261201);
  pid_t running[kProcesses] = {};
  const auto start = [&](int i) {
    running[i] = fork();
    if (running[i] == 0) share(path, *all, i, static_cast<unsigned>(random()));
    ASSERT_GT(running[i], 0);
  };
  for (int i = 0; i < kProcesses; ++i) start(i);
  for (int round = 0; round < rounds; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    const int victim = static_cast<int>(random() % kProcesses);
    if (random() % 4 == 0) {
      ASSERT_EQ(kill(running[victim], SIGSTOP), 0);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      ASSERT_EQ(kill(running[victim], SIGCONT), 0);
      continue;
    }
    ++all->epoch;
    ASSERT_EQ(kill(running[victim], SIGKILL), 0);
    int how = 0;
    ASSERT_EQ(waitpid(running[victim], &how, 0), running[victim]);
    ASSERT_TRUE(WIFSIGNALED(how)) << "participant " << victim << " gave up by itself: " << how;
    all->of[victim].held = 0;
    all->of[victim].version += all->of[victim].version % 2;
    ++all->epoch;
    const auto now = (*observer)->stats();
    ASSERT_TRUE(now) << now.error().message();
    ASSERT_LE(now->reserved, kLimit);
    start(victim);
  }
  ++all->epoch;
  for (const pid_t p : running) {
    kill(p, SIGKILL);
    waitpid(p, nullptr, 0);
  }
  EXPECT_EQ(all->exceeded, 0u);
  EXPECT_EQ(all->too_long, 0u);
  EXPECT_GT(all->seen, 100u) << "they hardly lived: " << all->rounds << " rounds";
  EXPECT_GT(all->reclaimed, 0u) << "nothing was ever given back";
  EXPECT_GT(all->refused, 0u) << "the limit was never reached";
  EXPECT_TRUE((*observer)->reserve(kLimit)) << "capacity was lost with the dead";
  EXPECT_EQ((*observer)->stats()->participants.size(), 1u);
  std::printf("note: %d kills and stops, %llu rounds, %llu times memory given back, %llu refused\n",
              rounds, static_cast<unsigned long long>(all->rounds),
              static_cast<unsigned long long>(all->reclaimed),
              static_cast<unsigned long long>(all->refused));
  EXPECT_TRUE(shared_quota::remove(path));
  munmap(all, sizeof(beliefs));
}

}  // namespace
}  // namespace stillmap
