// Each host allocation of saving and restoring fails in turn: the memory is unchanged, no file and
// no memory is left, and repeating the call succeeds.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "stillmap/checkpoint/snapshot/restore_contents.h"
#include "stillmap/checkpoint/snapshot/set.h"
#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"
#include "tests/support/held.h"
#include "tests/support/host_memory_sweep.h"

namespace stillmap::snapshot {
namespace {

using stillmap::testing::allocation_sweep;
using stillmap::testing::fail_each_allocation;
using stillmap::testing::failing_allocation;
using stillmap::testing::held;
using stillmap::testing::holds;
using stillmap::testing::one_in;
using stillmap::testing::pattern;
using stillmap::testing::put;

// An image has one thread, the test's, whose allocations are the ones that fail.
class snapshots_without_host_memory : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    STILLMAP_ONE_PROFILE_DOES();
    std::string name = ::testing::TempDir() + "/stillmap-snapshots-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
    buffer_test::TearDown();
  }

  std::string file(const char *name) const { return folder_ / name; }
  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::recursive_directory_iterator(folder_), {});
  }
  growable_buffer memory(std::size_t part, const char *tag, unsigned seed) const {
    buffer_options options;
    options.hint = device_address(stillmap::testing::far_away + part * (std::size_t{1} << 32));
    options.tag = tag;
    page_pool_options pages;
    pages.keep_free = 0;
    options.pools = {*page_pool::create(dev(), pages)};
    auto made = growable_buffer::create(dev(), std::move(options));
    if (!made || !made->resize(2 * page())) throw std::runtime_error("no memory");
    for (unsigned i = 0; i < 2; ++i) {
      put(dev(), made->address() + i * page(), pattern(page(), seed + i));
    }
    return std::move(*made);
  }
  static save_options one_thread() {
    save_options options;
    options.image.threads = 1;
    return options;
  }
  void expect_nothing_mapped() const {
    dev().space().collect(true);
    EXPECT_EQ(dev().space().stats().live_blocks, 0u);
    EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
  }

  // Whether the first page has pattern 1 and the second one `second`.
  void expect_pages(device_address at, unsigned second) const {
    EXPECT_TRUE(holds(dev(), at, page(), 1));
    EXPECT_TRUE(holds(dev(), at + page(), page(), second));
  }

  // Makes `file` by save(), each allocation failing once, and then all from each one on.
  template <class Save>
  allocation_sweep sweep_saves(const std::string &file, device_address at, unsigned second,
                               const Save &save) {
    allocation_sweep all;
    for (const bool all_after : {false, true}) {
      all += fail_each_allocation(
          [&](failing_allocation &failing) {
            const held before = held::now(driver());
            const std::ptrdiff_t had = files();
            if (!failing(save)) {
              EXPECT_EQ(files(), had);
              EXPECT_EQ(before.more_now(driver()), "");
              ASSERT_DONE(save());
            }
            EXPECT_EQ(before.more_now(driver()), "");
            std::filesystem::remove_all(file);
            EXPECT_EQ(files(), had);
            expect_pages(at, second);
          },
          all_after, all_after ? one_in(23) : one_in(7));
    }
    return all;
  }

  // `address_in` tells where the memory is in the result of back().
  template <class Restore, class Address>
  allocation_sweep sweep_restores(unsigned second, const Restore &back, const Address &address_in) {
    allocation_sweep all;
    for (const bool all_after : {false, true}) {
      all += fail_each_allocation(
          [&](failing_allocation &failing) {
            const held before = held::now(driver());
            {
              auto done = failing(back);
              if (!done) {
                expect_nothing_mapped();
                EXPECT_EQ(before.more_now(driver()), "");
                done = back();
                ASSERT_DONE(done);
              }
              expect_pages(address_in(*done), second);
            }
            expect_nothing_mapped();
            EXPECT_EQ(before.more_now(driver()), "");
          },
          all_after, all_after ? one_in(23) : one_in(7));
    }
    return all;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(snapshots_without_host_memory, an_image_is_whole_or_not_there) {
  const std::string full = file("full.smi"), next = file("next.smi");
  const std::vector<std::string> tags{"weights"};
  allocation_sweep all;
  {
    const growable_buffer weights = memory(0, "weights", 1);
    save_options options = one_thread();
    options.notes = {{"a note that is longer than a short string", {}}};
    all +=
        sweep_saves(full, weights.address(), 2, [&] { return save(dev(), tags, full, options); });
    ASSERT_FALSE(HasFailure());
    ASSERT_DONE(save(dev(), tags, full, options));
    auto parent = image::reader::open(full);
    ASSERT_DONE(parent);
    options.image.parent = *parent;
    put(dev(), weights.address() + page(), pattern(page(), 3));
    all +=
        sweep_saves(next, weights.address(), 3, [&] { return save(dev(), tags, next, options); });
    ASSERT_FALSE(HasFailure());
    ASSERT_DONE(save(dev(), tags, next, options));
  }
  expect_nothing_mapped();
  restore_options options;
  options.threads = 1;
  const auto address_in = [](const restored &r) {
    return r.memory.layout().blocks.front().range.begin;
  };
  all += sweep_restores(
      3, [&] { return restore(dev(), next, options); }, address_in);
  options.relocate = true;
  options.tags = tags;
  all += sweep_restores(
      2, [&] { return restore(dev(), full, options); }, address_in);
  EXPECT_GT(all.points, stillmap::testing::fewest_points(80));
  all.note("snapshot", one_in(2) == 1 ? "" : " (one in 7; all from one in 23 on)");
}

TEST_F(snapshots_without_host_memory, a_set_is_whole_or_not_there) {
  const std::string folder = file("set");
  allocation_sweep all;
  {
    const growable_buffer weights = memory(0, "weights", 1), cache = memory(1, "cache", 5);
    const std::vector<set_part> parts{{dev(), {"weights"}, {}, {}}, {dev(), {"cache"}, {}, {}}};
    save_set_options options;
    options.image.threads = 2;  // one for each image
    all +=
        sweep_saves(folder, weights.address(), 2, [&] { return save_set(parts, folder, options); });
    ASSERT_FALSE(HasFailure());
    ASSERT_DONE(save_set(parts, folder, options));
  }
  expect_nothing_mapped();
  const std::vector<device> devices{dev(), dev()};
  restore_options options;
  options.threads = 2;
  all += sweep_restores(
      2, [&] { return restore_set(devices, folder, options); },
      [](const restored_set &r) {
        return r.devices.front().memory.layout().blocks.front().range.begin;
      });
  EXPECT_GT(all.points, stillmap::testing::fewest_points(60));
  all.note("snapshot sets", one_in(2) == 1
                                ? " of the calling thread"
                                : " of the calling thread (one in 7; all from one in 23 on)");
}

// Where its first byte was written, an error may not be able to say so.
TEST_F(snapshots_without_host_memory, contents_are_restored_or_the_call_fails) {
  const std::string path = file("full.smi");
  const std::vector<std::string> tags{"weights"};
  growable_buffer weights = memory(0, "weights", 1);
  ASSERT_DONE(save(dev(), tags, path, one_thread()));
  restore_contents_options options;
  options.threads = 1;
  allocation_sweep all;
  for (const bool all_after : {false, true}) {
    all += fail_each_allocation(
        [&](failing_allocation &failing) {
          put(dev(), weights.address(), pattern(2 * page(), 9));
          const held before = held::now(driver());
          const auto call = [&] { return restore_contents(dev(), path, options); };
          if (!failing(call)) {
            EXPECT_EQ(before.more_now(driver()), "");
            ASSERT_DONE(call());
          }
          EXPECT_EQ(before.more_now(driver()), "");
          expect_pages(weights.address(), 2);
        },
        all_after, all_after ? one_in(23) : one_in(7));
  }
  EXPECT_GT(all.points, stillmap::testing::fewest_points(10));
  all.note("contents", one_in(2) == 1 ? "" : " (one in 7; all from one in 23 on)");
}

}  // namespace
}  // namespace stillmap::snapshot
