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

// Participants in processes of their own, of which some are killed or stopped.
class quota_kill : public ::testing::Test {
 protected:
  using part = void (*)(const std::string &path, beliefs &all, int me, unsigned seed);
  void SetUp() override {
    void *const shared =
        mmap(nullptr, sizeof(beliefs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    all_ = static_cast<beliefs *>(shared);
    const auto observer = shared_quota::open(path_, {.limit = kLimit});
    ASSERT_TRUE(observer) << observer.error().message();
    observer_ = *observer;
  }
  void TearDown() override {
    EXPECT_TRUE(shared_quota::remove(path_));
    munmap(all_, sizeof(beliefs));
  }
  void start_all(part take_it, unsigned seed) {
    part_ = take_it;
    random_.seed(seed);
    for (int i = 0; i < kProcesses; ++i) start(i);
  }
  void wait_up_to(unsigned microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % microseconds));
  }
  int any() { return static_cast<int>(random_() % kProcesses); }
  // And starts another in its place.
  void kill_one() {
    const auto now = observer_->stats();
    ASSERT_TRUE(now) << now.error().message();
    ASSERT_LE(now->reserved, kLimit);
    ++all_->epoch;
    const int victim = any();
    ASSERT_EQ(kill(running_[victim], SIGKILL), 0);
    int how = 0;
    ASSERT_EQ(waitpid(running_[victim], &how, 0), running_[victim]);
    ASSERT_TRUE(WIFSIGNALED(how)) << "participant " << victim << " gave up by itself: " << how;
    all_->of[victim].held = 0;
    all_->of[victim].version += all_->of[victim].version % 2;  // even, and never seen before
    ++all_->epoch;
    start(victim);
  }
  void stop_one() {
    const pid_t victim = running_[any()];
    ASSERT_EQ(kill(victim, SIGSTOP), 0);
    wait_up_to(30'000);
    ASSERT_EQ(kill(victim, SIGCONT), 0);
  }
  // Kills all. What they held together was never too much, and is free again.
  void end_all() {
    ++all_->epoch;
    for (const pid_t p : running_) {
      kill(p, SIGKILL);
      waitpid(p, nullptr, 0);
    }
    EXPECT_EQ(all_->exceeded, 0u);
    EXPECT_GT(all_->refused, 0u) << "the limit was never reached";
    EXPECT_TRUE(observer_->reserve(kLimit)) << "capacity was lost with the dead";
    EXPECT_EQ(observer_->stats()->participants.size(), 1u);
  }

  beliefs *all_ = nullptr;
  std::mt19937 random_;

 private:
  void start(int i) {
    const auto seed = static_cast<unsigned>(random_());
    running_[i] = fork();
    if (running_[i] == 0) part_(path_, *all_, i, seed);
    ASSERT_GT(running_[i], 0);
  }
  const std::string path_ =
      ::testing::TempDir() + "stillmap-quota-kill-" + std::to_string(getpid());
  std::shared_ptr<shared_quota> observer_;
  part part_ = nullptr;
  std::array<pid_t, kProcesses> running_{};
};

TEST_F(quota_kill, a_thousand_deaths) {
  start_all(take_part, 20240611);
  for (int killed = 0; killed < kKills && !HasFatalFailure(); ++killed) {
    wait_up_to(3000);
    kill_one();
  }
  end_all();
  EXPECT_GT(all_->seen, 1000u) << "they hardly lived: " << all_->rounds << " rounds";
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
TEST_F(quota_kill, deaths_and_stops_while_memory_is_given_back) {
  const char *const more = std::getenv("STILLMAP_QUOTA_KILLS");
  const int rounds = more != nullptr ? std::atoi(more) : 1000;
  start_all(share, 20261201);
  for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
    wait_up_to(4000);
    if (random_() % 4 == 0) {
      stop_one();
    } else {
      kill_one();
    }
  }
  end_all();
  EXPECT_EQ(all_->too_long, 0u);
  EXPECT_GT(all_->seen, 100u) << "they hardly lived: " << all_->rounds << " rounds";
  EXPECT_GT(all_->reclaimed, 0u) << "nothing was ever given back";
  std::printf("note: %d kills and stops, %llu rounds, %llu times memory given back, %llu refused\n",
              rounds, static_cast<unsigned long long>(all_->rounds),
              static_cast<unsigned long long>(all_->reclaimed),
              static_cast<unsigned long long>(all_->refused));
}

}  // namespace
}  // namespace stillmap
