// What a holder keeps, without its clients: generations, leases, claims, limits; and all of it from several threads.
#include "stillmap/checkpoint/publication/internal/holder_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>

#include "stillmap/vmm/base/host_memory.h"
#include "tests/support/host_memory_sweep.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;

class holder_store_test : public ::testing::Test {
 protected:
  static std::shared_ptr<held_memory> memory(const std::string &name, std::size_t pages = 2) {
    auto out = std::make_shared<held_memory>();
    out->about.name = name;
    out->about.pages = pages;
    for (std::size_t i = 0; i < pages; ++i) {
      out->pages.push_back(fork_closed_fd::open("/dev/null", O_RDONLY));
    }
    return out;
  }
  // Of what memory() opens: a simulator that an earlier test used may close others meanwhile.
  static long descriptors() {
    return std::count_if(std::filesystem::directory_iterator("/proc/self/fd"), {},
                         [](const std::filesystem::directory_entry &fd) {
                           std::error_code closed;
                           return std::filesystem::read_symlink(fd, closed) == "/dev/null";
                         });
  }
  holder_store store_;
};

TEST_F(holder_store_test, a_generation_lives_as_long_as_it_is_newest_or_leased) {
  const long before = descriptors();
  const std::uint64_t one = store_.publish(memory("a"));
  auto lease = store_.find("a", 0, 7);
  ASSERT_TRUE(lease);
  const std::uint64_t two = store_.publish(memory("a"));
  EXPECT_GT(two, one);
  EXPECT_EQ(store_.list().size(), 2U);
  EXPECT_EQ(store_.list()[0].readers, std::vector<pid_t>{7});
  EXPECT_FALSE(store_.list()[0].newest);
  EXPECT_TRUE(store_.list()[1].newest);
  EXPECT_TRUE(store_.find("a", one, 8)) << "while somebody has it";
  EXPECT_EQ(store_.open_fds(), 4U + 1);
  lease.reset();
  EXPECT_FALSE(store_.find("a", one, 8));
  EXPECT_EQ(store_.list().size(), 1U);
  EXPECT_EQ(store_.withdraw("a"), two);
  EXPECT_EQ(store_.withdraw("a"), 0U);
  EXPECT_FALSE(store_.find("a", 0, 8));
  EXPECT_EQ(store_.open_fds(), 0U);
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(store_.withdraw("none"), 0U);
}

TEST_F(holder_store_test, a_name_is_claimed_once_and_not_while_it_is_published) {
  auto claim = store_.try_claim("a");
  ASSERT_TRUE(claim);
  EXPECT_FALSE(store_.try_claim("a"));
  EXPECT_TRUE(store_.try_claim("b"));
  const std::uint64_t seen = store_.changes();
  claim.reset();
  EXPECT_NE(store_.changes(), seen);
  claim = store_.try_claim("a");
  ASSERT_TRUE(claim);
  store_.publish(memory("a"));
  claim.reset();
  EXPECT_FALSE(store_.try_claim("a"));
  EXPECT_TRUE(store_.find("a", 0, 1));
  store_.withdraw("a");
  EXPECT_TRUE(store_.try_claim("a"));
  EXPECT_TRUE(store_.list().empty());
}

TEST_F(holder_store_test, a_wait_ends_with_a_publication) {
  const std::uint64_t seen = store_.changes();
  std::thread other([&] { store_.publish(memory("a")); });
  store_.wait(seen, 60s);
  EXPECT_NE(store_.changes(), seen);
  other.join();
  store_.wait(store_.changes(), 1ms);
}

TEST_F(holder_store_test, waiting_clients_and_descriptors_are_limited) {
  auto one = store_.admit_waiting(2), two = store_.admit_waiting(2);
  EXPECT_TRUE(one && two);
  EXPECT_FALSE(store_.admit_waiting(2));
  one.reset();
  EXPECT_TRUE(store_.admit_waiting(2));
  store_.publish(memory("a", 3));
  auto fds = store_.admit_fds(4, 7);
  EXPECT_TRUE(fds);
  EXPECT_FALSE(store_.admit_fds(1, 7));
  EXPECT_FALSE(store_.admit_fds(SIZE_MAX, SIZE_MAX));
  EXPECT_FALSE(store_.admit_fds(0, 6)) << "more are open already";
  EXPECT_EQ(store_.open_fds(), 7U);
  fds.reset();
  EXPECT_EQ(store_.open_fds(), 3U);
}

TEST_F(holder_store_test, without_host_memory_nothing_changes) {
  stillmap::testing::allocation_sweep all;
  const auto lease_of = [&](const char *name) -> result<int> {
    return store_.find(name, 0, 1) ? 1 : 0;
  };
  all += stillmap::testing::fail_each_allocation([&](auto &failing) {
    auto made = memory("a");
    const std::uint64_t before = store_.publish(memory("b"));
    const auto done = failing([&]() -> result<std::uint64_t> {
      return with_host_memory("a test",
                              [&]() -> result<std::uint64_t> { return store_.publish(made); });
    });
    if (done) {
      EXPECT_EQ(*done, before + 1);
      EXPECT_EQ(store_.withdraw("a"), *done);
    }
    made.reset();
    EXPECT_FALSE(store_.find("a", 0, 1));
    EXPECT_EQ(store_.list().size(), 1U);
  });
  all += stillmap::testing::fail_each_allocation([&](auto &failing) {
    const auto done =
        failing([&] { return with_host_memory("a test", [&] { return lease_of("b"); }); });
    EXPECT_TRUE(!done || *done == 1);
    EXPECT_TRUE(store_.list()[0].readers.empty());
  });
  all += stillmap::testing::fail_each_allocation([&](auto &failing) {
    (void)failing([&] {
      return with_host_memory("a test", [&]() -> status {
        EXPECT_TRUE(store_.try_claim(std::string(40, 'c')));
        return {};
      });
    });
    EXPECT_TRUE(store_.try_claim(std::string(40, 'c')));
  });
  all += stillmap::testing::fail_each_allocation([&](auto &failing) {
    (void)failing([&] {
      return with_host_memory("a test", [&]() -> status {
        (void)store_.list();
        (void)store_.admit_fds(1, 100);
        (void)store_.admit_waiting(1);
        return {};
      });
    });
    EXPECT_EQ(store_.open_fds(), 2U);
    EXPECT_TRUE(store_.admit_waiting(1));
  });
  EXPECT_GT(all.points, stillmap::testing::fewest_points(8));
}

// Each reads what it was given, and in the end nothing is left.
TEST_F(holder_store_test, many_threads) {
  const long before = descriptors();
  std::vector<std::thread> threads;
  std::atomic<int> found{0}, claimed{0};
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 400; ++i) {
        const std::string name(1, static_cast<char>('a' + random() % 3));
        switch (random() % 7) {
          case 0:
            store_.publish(memory(name, random() % 3));
            break;
          case 1:
            store_.withdraw(name);
            break;
          case 2:
            for (const held_publication &p : store_.list()) EXPECT_NE(p.generation, 0U);
            break;
          case 3:
            if (const auto claim = store_.try_claim(name)) {
              ++claimed;
              if (random() % 2 == 0) store_.publish(memory(name));
            }
            break;
          case 4:
            store_.wait(store_.changes(), 1ms);
            (void)store_.admit_fds(3, 1000);
            break;
          default:
            if (const auto lease = store_.find(name, 0, 1)) {
              ++found;
              EXPECT_EQ(lease->memory().about.name, name);
              EXPECT_EQ(lease->memory().pages.size(), lease->memory().about.pages);
              const auto again = store_.find(name, lease->memory().about.generation, 2);
              EXPECT_TRUE(again);
            }
        }
      }
    });
  }
  for (std::thread &t : threads) t.join();
  EXPECT_GT(found, 0);
  for (const char *const name : {"a", "b", "c"}) store_.withdraw(name);
  EXPECT_TRUE(store_.list().empty());
  EXPECT_EQ(store_.open_fds(), 0U);
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace stillmap::publication::testing
