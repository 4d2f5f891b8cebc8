// Saving memory as an image and restoring it: addresses, contents, shared pages, failures.
#include "stillmap/checkpoint/snapshot/snapshot.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"
#include "tests/support/gpu_test.h"
#include "tests/support/refuse_each.h"

namespace stillmap::snapshot {
namespace {

using namespace literals;
using stillmap::testing::holds;
using stillmap::testing::pattern;
using stillmap::testing::put;
using stillmap::testing::refuse_each;

class snapshots : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    std::string name = ::testing::TempDir() + "/stillmap-snapshots-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
    buffer_test::TearDown();
  }
  std::string file(const char *name = "memory.smi") const { return folder_ / name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_),
                                                  std::filesystem::directory_iterator()));
  }

  result<image::written> saved(std::vector<std::string> tags, const save_options &options = {},
                               const char *name = "memory.smi") const {
    return save(dev(), tags, file(name), options);
  }
  result<restored> back(const restore_options &options = {},
                        const char *name = "memory.smi") const {
    return restore(dev(), file(name), options);
  }
  address_space_stats books() const { return dev().space().stats(); }
  std::uint64_t device_free() const { return dev().memory()->free.bytes(); }

 private:
  std::filesystem::path folder_;
};

// An address far from where mappings usually are, so that it is free in another process and on
// another device. The thread sanitizer leaves few such ranges.
constexpr device_address far_away(stillmap::testing::far_away);

class far_memory {
 public:
  far_memory(const device &d, std::size_t pages, const char *tag, unsigned seed) : device_(d) {
    const std::size_t bytes = pages * d.capabilities().page_bytes;
    reservation_options there;
    there.hint = far_away;
    there.exact_address = true;
    there.tag = tag;
    auto block = reservation::create(d, bytes, there);
    std::vector<page_ptr> memory;
    if (!block || !d.pool()->acquire(pages, memory)) throw std::runtime_error("no far memory");
    block_ = block->block();
    remap_plan plan({{on_device(d.ordinal()), access_mode::read_write}});
    for (std::size_t i = 0; i < pages; ++i) {
      plan.map(far_away + i * d.capabilities().page_bytes, std::move(memory[i]));
    }
    if (!d.space().apply(std::move(plan))) throw std::runtime_error("no far memory");
    put(d, far_away, pattern(bytes, seed));
  }
  far_memory(const far_memory &) = delete;
  ~far_memory() { EXPECT_TRUE(device_.space().retire(block_, block_->range(), {})); }

 private:
  const device &device_;
  std::shared_ptr<address_block> block_;
};

TEST_F(snapshots, contents_come_back_at_the_same_addresses) {
  device_address weights_at, cache_at;
  {
    growable_buffer weights = filled(5, "weights", 1), cache = filled(2, "cache", 2);
    growable_buffer other = filled(1, "other", 3);
    weights_at = weights.address();
    cache_at = cache.address();
    const auto w = saved({"weights", "cache"});
    ASSERT_DONE(w);
    EXPECT_EQ(w->contents_bytes, 7 * page());
    EXPECT_TRUE(holds(dev(), weights_at, 5 * page(), 1)) << "saving changes nothing";
  }
  ASSERT_TRUE(dev().pool()->trim());
  dev().space().collect(true);
  const std::uint64_t free_before = device_free();
  {
    auto r = back();
    ASSERT_DONE(r);
    EXPECT_EQ(r->memory.bytes(), 7 * page());
    ASSERT_EQ(r->memory.tagged("weights").size(), 1u);
    EXPECT_EQ(r->memory.tagged("weights")[0], (virtual_range{weights_at, 64_MiB}));
    EXPECT_TRUE(r->memory.tagged("other").empty());
    EXPECT_TRUE(holds(dev(), weights_at, 5 * page(), 1));
    EXPECT_TRUE(holds(dev(), cache_at, 2 * page(), 2));
    put(dev(), weights_at, pattern(page(), 9));
    EXPECT_EQ(device_free(), free_before - 7 * page());
  }
  EXPECT_EQ(device_free(), free_before);
  EXPECT_EQ(books().live_blocks, 0u);
}

TEST_F(snapshots, an_allocators_blocks_and_the_pointers_between_them_come_back) {
  std::vector<device_address> at;
  {
    // One with larger pages, too.
    auto heap = caching_allocator::create(dev(), {.tag = "heap"});
    auto large = caching_allocator::create(dev(), {.page_bytes = 4 * page(), .tag = "heap"});
    ASSERT_TRUE(heap && large);
    for (unsigned i = 0; i < 6; ++i) {
      void *const block = *(i % 2 == 0 ? *heap : *large)->allocate(3 * page() / 2, {});
      at.push_back(device_address(reinterpret_cast<std::uintptr_t>(block)));
      put(dev(), at.back(), pattern(3 * page() / 2, i));
    }
    ASSERT_DONE(saved({"heap"}));
  }
  auto r = back();
  ASSERT_DONE(r);
  for (unsigned i = 0; i < 6; ++i) EXPECT_TRUE(holds(dev(), at[i], 3 * page() / 2, i));
}

// A page at several addresses is stored once, and is one page again after restoring.
TEST_F(snapshots, aliases_stay_aliases) {
  device_address ring_at, alias_at;
  {
    growable_buffer ring = filled(3, "shared", 1);
    auto twice = ring.alias(0, 3 * page(), 2);
    ASSERT_TRUE(twice) << twice.error().message();
    ring_at = ring.address();
    alias_at = twice->address();
    const auto w = saved({"shared"});
    ASSERT_DONE(w);
    EXPECT_EQ(w->contents_bytes, 3 * page());
  }
  auto r = back();
  ASSERT_DONE(r);
  EXPECT_TRUE(holds(dev(), alias_at + 3 * page(), 3 * page(), 1));
  put(dev(), ring_at + page(), pattern(64, 9));
  EXPECT_TRUE(holds(dev(), alias_at + page(), 64, 9));
  EXPECT_TRUE(holds(dev(), alias_at + 4 * page(), 64, 9));
}

TEST_F(snapshots, memory_that_may_only_be_read_comes_back_so) {
  device_address at;
  {
    auto block = reservation::create(dev(), 2 * page(), {.tag = "constant"});
    ASSERT_TRUE(block);
    std::vector<page_ptr> pages;
    ASSERT_TRUE(dev().pool()->acquire(2, pages));
    at = block->range().begin;
    remap_plan plan({{on_device(dev().ordinal()), access_mode::read_write}});
    plan.map(at, pages[0]);
    plan.map(at + page(), pages[1]);
    ASSERT_TRUE(dev().space().apply(std::move(plan)));
    put(dev(), at, pattern(2 * page(), 4));
    remap_plan only_read({});
    only_read.grant(block->range(), {{on_device(dev().ordinal()), access_mode::read}});
    ASSERT_TRUE(dev().space().apply(std::move(only_read)));
    pages.clear();
    ASSERT_DONE(saved({"constant"}));
    ASSERT_TRUE(dev().space().retire(block->block(), block->range(), {}));
  }
  auto r = back();
  ASSERT_DONE(r);
  EXPECT_TRUE(holds(dev(), at, 2 * page(), 4));
  for (const mapping_record &m : dev().space().mappings({at, 2 * page()})) {
    ASSERT_EQ(m.access.size(), 1u);
    EXPECT_EQ(m.access[0].mode, access_mode::read);
  }
}

TEST_F(snapshots, some_of_the_tags_come_back) {
  device_address cache_at;
  {
    growable_buffer weights = filled(4, "weights", 1), cache = filled(3, "cache", 2);
    cache_at = cache.address();
    ASSERT_DONE(saved({"weights", "cache"}));
  }
  restore_options options;
  options.tags = {"cache"};
  auto r = back(options);
  ASSERT_DONE(r);
  EXPECT_EQ(r->memory.bytes(), 3 * page());
  EXPECT_TRUE(holds(dev(), cache_at, 3 * page(), 2));
  EXPECT_EQ(books().live_blocks, 1u);
  options.tags = {"cache", "nothing"};
  const auto none = back(options);
  ASSERT_FALSE(none);
  EXPECT_TRUE(none.error().is(errc::invalid_argument));
}

TEST_F(snapshots, an_address_that_is_taken_is_refused_and_its_holder_named) {
  growable_buffer weights = filled(2, "weights", 1);
  ASSERT_DONE(saved({"weights"}));
  const address_space_stats before = books();
  const auto r = back();
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::busy)) << r.error().message();
  if (on_hostcuda()) {
    EXPECT_FALSE(r.error().detail().found.empty()) << r.error().message();
  }
  EXPECT_EQ(books().live_blocks, before.live_blocks);
  EXPECT_EQ(books().physical, before.physical);
  EXPECT_TRUE(holds(dev(), weights.address(), 2 * page(), 1));
}

TEST_F(snapshots, what_holds_no_pointers_can_go_elsewhere) {
  growable_buffer a = filled(2, "a", 1), b = filled(3, "a", 2);
  ASSERT_DONE(saved({"a"}));
  restore_options options;
  options.relocate = true;
  auto r = back(options);
  ASSERT_DONE(r);
  ASSERT_EQ(r->original_ranges.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const virtual_range now = r->memory.layout().blocks[i].range;
    EXPECT_NE(now.begin, r->original_ranges[i].begin);
    const bool is_a = r->original_ranges[i].begin == a.range().begin;
    EXPECT_TRUE(holds(dev(), now.begin, (is_a ? 2 : 3) * page(), is_a ? 1 : 2));
  }
  EXPECT_TRUE(holds(dev(), a.address(), 2 * page(), 1));
}

TEST_F(snapshots, pages_can_be_made_for_handing_them_over) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  {
    const growable_buffer b = filled(2, "weights", 1);
    ASSERT_DONE(saved({"weights"}));
  }
  restore_options options;
  options.exportable = handle_type::posix_fd;
  const auto r = back(options);
  ASSERT_DONE(r);
  const virtual_range at = r->memory.layout().blocks.at(0).range;
  for (const mapping_record &m : dev().space().mappings(at)) {
    EXPECT_EQ(m.backing->properties().exportable, handle_type::posix_fd);
  }
  EXPECT_EQ(r->memory.layout().pages.at(0).properties.exportable, handle_type::posix_fd);
  EXPECT_TRUE(holds(dev(), at.begin, 2 * page(), 1));
}

TEST_F(snapshots, another_device_takes_it_over) {
  const auto devices = device::count();
  if (!devices || *devices < 2) GTEST_SKIP() << "needs two devices";
  const auto second = device::open(1);
  ASSERT_TRUE(second) << second.error().message();
  {
    const far_memory weights(dev(), 3, "weights", 1);
    ASSERT_DONE(saved({"weights"}));
  }
  auto r = restore(*second, file());
  ASSERT_DONE(r);
  EXPECT_TRUE(holds(*second, far_away, 3 * page(), 1));
  EXPECT_EQ(r->memory.device(), *second);
}

TEST_F(snapshots, only_what_changed_is_stored_again) {
  device_address at;
  {
    growable_buffer b = filled(8, "b", 1);
    at = b.address();
    put(dev(), at + 3 * page(), std::vector<unsigned char>(page()));
    const auto whole = saved({"b"});
    ASSERT_DONE(whole);
    EXPECT_EQ(whole->zero_chunks, page() / 2_MiB);
    put(dev(), at + 5 * page(), pattern(page(), 7));
    save_options options;
    auto parent = image::reader::open(file());
    ASSERT_DONE(parent);
    options.image.parent = *parent;
    const driver_counts before = counts();
    const auto changed = saved({"b"}, options, "changed.smi");
    ASSERT_DONE(changed);
    EXPECT_EQ(changed->stored_bytes, page());
    if (on_hostcuda()) {
      EXPECT_EQ((counts() - before).bytes_to_host, page() + 8 * page() / 2_MiB * 16)
          << "what has not changed is not read";
    }
    // The same in chunks that are smaller than a page.
    save_options fine;
    fine.image.chunk_bytes = image::min_chunk_bytes;
    ASSERT_DONE(saved({"b"}, fine, "fine.smi"));
    auto fine_parent = image::reader::open(file("fine.smi"));
    ASSERT_DONE(fine_parent);
    fine.image.parent = *fine_parent;
    put(dev(), at + 5 * page() + image::min_chunk_bytes, pattern(8, 9));
    const driver_counts then = counts();
    const auto little = saved({"b"}, fine, "little.smi");
    ASSERT_DONE(little);
    EXPECT_EQ(little->stored_bytes, image::min_chunk_bytes);
    if (on_hostcuda()) {
      EXPECT_EQ((counts() - then).bytes_to_host,
                image::min_chunk_bytes + 8 * page() / image::min_chunk_bytes * 16);
    }
  }
  auto r = back({}, "changed.smi");
  ASSERT_DONE(r);
  EXPECT_TRUE(holds(dev(), at + 5 * page(), page(), 7));
  EXPECT_EQ(stillmap::testing::get(dev(), at + 3 * page(), page()),
            std::vector<unsigned char>(page()));
}

// There is one stream a page, and one thread a chunk.
TEST_F(snapshots, more_threads_than_streams_take_turns) {
  namespace control = stillmap::testing::hostcuda_control;
  device_address at;
  {
    const growable_buffer b = filled(1, "b", 1);
    at = b.address();
    save_options options;
    options.image.threads = 4;
    options.image.chunk_bytes = image::min_chunk_bytes;
    // Meanwhile the other threads want the stream.
    std::function<void()> linger = [] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    };
    if (on_hostcuda()) control::before("cuMemcpyDtoHAsync", 1, linger);
    const auto w = saved({"b"}, options);
    if (on_hostcuda()) control::stop_failing("cuMemcpyDtoHAsync");
    ASSERT_DONE(w);
    EXPECT_GT(w->chunks, 4u);
  }
  const auto r = back();
  ASSERT_DONE(r);
  EXPECT_TRUE(holds(dev(), at, page(), 1));
}

TEST_F(snapshots, notes_are_restored_and_progress_is_reported) {
  std::optional<growable_buffer> b = filled(4, "b", 1);
  save_options options;
  options.notes.push_back({"step", {std::byte{4}, std::byte{2}}});
  ASSERT_DONE(saved({"b"}, options));
  b.reset();
  std::uint64_t told = 0;
  restore_options reading;
  reading.on_progress = [&](const restore_progress &p) {
    EXPECT_GT(p.bytes, told);
    told = p.bytes;
  };
  {
    auto r = back(reading);
    ASSERT_DONE(r);
    EXPECT_EQ(told, 4 * page());
    EXPECT_EQ(r->notes, options.notes);
  }
  std::stop_source cancel;
  reading.on_progress = [&](const restore_progress &) { cancel.request_stop(); };
  reading.cancel = cancel.get_token();
  const auto cancelled = back(reading);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, std::errc::operation_canceled);
  EXPECT_EQ(books().live_blocks, 0u);
}

TEST_F(snapshots, without_memory_nothing_is_there_and_later_all_is) {
  device_address at;
  {
    growable_buffer b = filled(6, "b", 1);
    at = b.address();
    ASSERT_DONE(saved({"b"}));
  }
  STILLMAP_NEEDS_HOSTCUDA();
  ASSERT_TRUE(dev().pool()->trim());
  dev().space().collect(true);
  leave_free(5);
  const auto r = back();
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::out_of_memory)) << r.error().message();
  EXPECT_EQ(books().live_blocks, 0u);
  EXPECT_EQ(books().physical.bytes(), 0u);
  leave_free(6);
  auto again = back();
  ASSERT_DONE(again);
  EXPECT_TRUE(holds(dev(), at, 6 * page(), 1));
}

TEST_F(snapshots, damaged_contents_are_shown_to_nobody) {
  {
    growable_buffer b = filled(3, "b", 1);
    ASSERT_DONE(saved({"b"}));
  }
  const auto whole = image::reader::open(file());
  ASSERT_DONE(whole);
  std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(whole->chunks()[1].where + 777);
  bytes.seekg(at);
  const char was = static_cast<char>(bytes.get());
  bytes.seekp(at);
  bytes.put(static_cast<char>(was ^ 4));
  bytes.close();
  ASSERT_TRUE(dev().pool()->trim());
  dev().space().collect(true);
  const auto r = back();
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::corrupt)) << r.error().message();
  EXPECT_EQ(books().live_blocks, 0u);
  EXPECT_EQ(books().physical.bytes(), 0u);
}

// ---- driver calls that fail in turn ----

// All calls but those that release resources, whose failures go to the error sink.
constexpr const char *calls[] = {"cuMemAddressReserve", "cuMemGetAllocationGranularity",
                                 "cuMemCreate",         "cuMemMap",
                                 "cuMemSetAccess",      "cuMemGetInfo",
                                 "cuMemHostAlloc",      "cuStreamCreate",
                                 "cuMemcpyHtoDAsync",   "cuMemcpyDtoHAsync",
                                 "cuMemsetD8Async",     "cuStreamSynchronize"};

TEST_F(snapshots, whatever_call_is_refused_nothing_is_half_saved) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer a = filled(3, "a", 1);
  const address_space_stats before = books();
  const std::uint64_t refused = refuse_each(calls, [&] {
    const auto w = saved({"a"});
    EXPECT_EQ(books().live_mappings, before.live_mappings);
    EXPECT_EQ(files(), w ? 1u : 0u);
    std::filesystem::remove(file());
    return w.has_value();
  });
  EXPECT_GT(refused, 3u);
  EXPECT_TRUE(holds(dev(), a.address(), 3 * page(), 1));
}

TEST_F(snapshots, whatever_call_is_refused_nothing_is_half_restored) {
  STILLMAP_NEEDS_HOSTCUDA();
  device_address at;
  {
    growable_buffer a = filled(3, "a", 1);
    at = a.address();
    put(dev(), at + page(), std::vector<unsigned char>(page()));
    ASSERT_DONE(saved({"a"}));
  }
  ASSERT_TRUE(dev().pool()->trim());
  dev().space().collect(true);
  const std::uint64_t refused = refuse_each(calls, [&] {
    {
      const auto r = back();
      if (r) return true;
    }
    dev().space().collect(true);
    EXPECT_EQ(books().live_blocks, 0u);
    EXPECT_EQ(books().physical.bytes(), 0u);
    return false;
  });
  EXPECT_GT(refused, 10u);
  auto r = back();
  ASSERT_DONE(r);
  EXPECT_TRUE(holds(dev(), at, page(), 1));
}

// ---- another process ----

// Run by the test below in a new process.
TEST_F(snapshots, DISABLED_in_a_fresh_process) {
  const char *const path = std::getenv("STILLMAP_TEST_IMAGE");
  ASSERT_NE(path, nullptr);
  auto r = restore(dev(), path);
  ASSERT_DONE(r);
  const virtual_range block = r->memory.tagged("weights").at(0);
  ASSERT_EQ(block.begin, far_away);
  EXPECT_TRUE(holds(dev(), block.begin, 5 * page(), 1));
}

TEST_F(snapshots, a_fresh_process_has_the_memory_at_the_same_addresses) {
  const far_memory weights(dev(), 5, "weights", 1);
  ASSERT_DONE(saved({"weights"}));
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("STILLMAP_TEST_IMAGE", file().c_str(), 1);
    ::unsetenv("XML_OUTPUT_FILE");
    ::unsetenv("GTEST_OUTPUT");
    ::unsetenv("TESTBRIDGE_TEST_ONLY");
    ::execl("/proc/self/exe", "snapshots", "--gtest_also_run_disabled_tests",
            "--gtest_filter=snapshots.DISABLED_in_a_fresh_process", "--gtest_brief=1", nullptr);
    ::_exit(127);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace stillmap::snapshot
