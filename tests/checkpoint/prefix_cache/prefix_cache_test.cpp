// Prefix caches saved and loaded, in this process and in another: every byte, the table, and failures.
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/checkpoint/prefix_cache/fixture.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/refuse_each.h"

namespace stillmap::testing {
namespace {

using prefix_cache::entry;
using keep = kv::block_arena::contents;

class prefix_cache_test : public saved_cache_fixture {
 protected:
  static result<std::vector<entry>> load(kv::block_arena &a, const std::string &from) {
    return prefix_cache::load(a, from, stream_ref::legacy());
  }
  // An image of every third of 24 blocks, of which one is used.
  std::vector<entry> saved(const std::string &to, const kv::block_arena_options &o) const {
    const auto a = arena(o);
    const auto entries = fill_cache(*a);
    const auto written = prefix_cache::save(*a, entries, to);
    EXPECT_TRUE(written) << written.error().message();
    EXPECT_EQ(a->stats().used, 1u);
    for (const entry &e : entries) EXPECT_TRUE(is_filled(*a, e.block)) << "block " << e.block;
    return entries;
  }
};

TEST_F(prefix_cache_test, blocks_and_keys_come_back_at_other_addresses) {
  const auto in_the_way = arena(options("first"));
  for (const std::size_t tokens : {4, 3, 32, 48}) {  // blocks that divide, cross and exceed pages
    SCOPED_TRACE(tokens);
    auto o = options();
    o.tokens_per_block = tokens;
    const auto entries = saved(path(), o);
    const auto second = arena(options("second"));
    const auto a = arena(o);
    const auto back = load(*a, path());
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(*back, entries);
    expect_cached(*a, entries);

    // Hits are blocks as any: used, released, and evicted in the order of the table.
    const kv::block_id last = entries.back().block;
    ASSERT_TRUE(a->retain({&last, 1}));
    ASSERT_TRUE(a->release({&last, 1}, keep::keep));
    ASSERT_TRUE(step(*a, 20));
    std::vector<kv::block_id> fresh(20);
    ASSERT_TRUE(a->allocate(fresh));
    for (const kv::block_id b : fresh) fill(*a, b, 1);
    for (const entry &e : entries) EXPECT_TRUE(is_filled(*a, e.block)) << "block " << e.block;
    ASSERT_TRUE(a->release(fresh));
    std::vector<kv::block_id> evicted;
    ASSERT_TRUE(a->evict(SIZE_MAX, evicted));
    ASSERT_TRUE(a->trim());
    EXPECT_EQ(a->stats().mapped_bytes, 0u);
    std::filesystem::remove(path());
  }
}

// Environment variables that make this program the process after the restart.
constexpr const char *image_variable = "STILLMAP_TEST_PREFIX_CACHE";

TEST_F(prefix_cache_test, another_process_loads_what_this_one_saved) {
  if (const char *const image = ::getenv(image_variable)) {
    const auto in_the_way = arena(options("first"));
    const auto a = arena(options());
    const auto back = load(*a, image);
    ASSERT_TRUE(back) << back.error().message();
    for (const entry &e : *back) EXPECT_EQ(e.key, table({&e.block, 1}).front().key);
    EXPECT_EQ(back->size(), 8u);
    expect_cached(*a, *back);
    return;
  }
  saved(path(), options());
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(image_variable, path().c_str(), 1);
    ::unsetenv("GTEST_OUTPUT");
    ::unsetenv("TESTBRIDGE_TEST_ONLY");
    ::unsetenv("XML_OUTPUT_FILE");
    const std::string one =
        "--gtest_filter=prefix_cache_test.another_process_loads_what_this_one_saved";
    ::execl("/proc/self/exe", "prefix_cache_test", one.c_str(), nullptr);
    ::_exit(9);
  }
  ASSERT_GT(child, 0);
  int how = -1;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
}

TEST_F(prefix_cache_test, the_first_entries_are_evicted_first) {
  // A block in each page group: eviction takes whole groups.
  std::vector<entry> entries;
  {
    const auto a = arena(options());
    const auto ids = filled_blocks(*a, 32);
    std::vector<kv::block_id> cached = {ids[16], ids[0], ids[24], ids[8]};
    ASSERT_TRUE(a->release(cached, keep::keep));
    entries = table(cached);
    ASSERT_TRUE(prefix_cache::save(*a, entries, path()));
  }
  const auto a = arena(options());
  ASSERT_TRUE(load(*a, path()));
  for (const entry &e : entries) {
    std::vector<kv::block_id> evicted;
    ASSERT_TRUE(a->evict(1, evicted));
    EXPECT_EQ(evicted, std::vector{e.block});
  }
}

TEST_F(prefix_cache_test, the_image_has_only_the_pages_of_the_blocks) {
  const auto a = arena(options());
  const auto other = arena(options());  // with the same tag
  filled_blocks(*other, 20);
  const auto ids = filled_blocks(*a, 40);
  const std::vector<kv::block_id> two = {ids[3], ids[17]};
  const auto written = prefix_cache::save(*a, table(two), path());
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_EQ(written->contents_bytes, 2 * 2 * page());
  // And none is an image, too.
  const auto empty = prefix_cache::save(*a, {}, path("empty.smi"));
  ASSERT_TRUE(empty) << empty.error().message();
  EXPECT_EQ(empty->contents_bytes, 0u);
  const auto b = arena(options("another tag"));
  const auto nothing = load(*b, path("empty.smi"));
  ASSERT_TRUE(nothing) << nothing.error().message();
  EXPECT_TRUE(nothing->empty());
  EXPECT_EQ(b->stats().mapped_bytes, 0u);
}

TEST_F(prefix_cache_test, errors_of_save) {
  const auto a = arena(options());
  const auto ids = filled_blocks(*a, 8);
  const auto save = [&](std::span<const entry> entries) {
    return outcome(prefix_cache::save(*a, entries, path()));
  };
  const std::vector<entry> free = {{ids[0], "a"}, {20, "b"}};
  EXPECT_TRUE(fails_with(save(free), errc::invalid_argument, "prefix_cache::save", 20, 0));
  const std::vector<entry> none = {{64, "a"}};
  EXPECT_TRUE(fails_with(save(none), errc::invalid_argument, "prefix_cache::save", 64, 0));
  const std::vector<entry> twice = {{ids[0], "a"}, {ids[0], "b"}};
  EXPECT_TRUE(fails_with(save(twice), errc::invalid_argument, "prefix_cache::save", ids[0], 0));
  const std::vector<entry> longer = {{ids[0], std::string(4097, 'a')}};
  EXPECT_TRUE(fails_with(save(longer), errc::invalid_argument, "prefix_cache::save", 4097, 4096));
  const std::vector<entry> one = {{ids[0], std::string(4096, 'a')}};
  ASSERT_TRUE(a->prepare(16, stream_ref::legacy()));
  EXPECT_TRUE(fails_with(save(one), errc::busy, "prefix_cache::save"));
  ASSERT_TRUE(a->begin_step());
  const auto s = checkpoint::suspender::create(dev());
  ASSERT_TRUE((*s)->suspend("cache"));
  EXPECT_TRUE(fails_with(save(one), errc::busy, "prefix_cache::save"));
  ASSERT_TRUE((*s)->resume("cache"));
  EXPECT_FALSE(std::filesystem::exists(path()));
  ASSERT_TRUE(a->trim());  // needs no step to be settled
  EXPECT_TRUE(save(one));
  const auto b = arena(options());
  const auto back = load(*b, path());
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, one);
}

TEST_F(prefix_cache_test, another_shape_is_refused_with_both) {
  saved(path(), options());
  const auto refused = [&](kv::block_arena_options o, const char *found, const char *expected) {
    const auto a = arena(o);
    const auto back = load(*a, path());
    ASSERT_FALSE(back);
    EXPECT_TRUE(back.error().is(errc::invalid_argument));
    EXPECT_NE(back.error().detail().found.find(found), std::string::npos) << back.error().message();
    EXPECT_NE(back.error().detail().expected.find(expected), std::string::npos)
        << back.error().message();
    EXPECT_EQ(a->stats().mapped_bytes, 0u);
  };
  auto o = options();
  o.blocks = 72;
  refused(o, "64 blocks", "72 blocks");
  o = options();
  o.layers_per_range = 4;
  refused(o, "2 layers in a range", "4 layers in a range");
  o = options();
  o.tokens_per_block = 8;
  refused(o, "of 4 tokens", "of 8 tokens");
  o = options();
  o.shape.tensors = 1;
  refused(o, "layers of 2 tensors", "layers of 1 tensors");
  refused(options("other"), "cache", "other");
}

TEST_F(prefix_cache_test, errors_of_load) {
  const auto entries = saved(path(), options());
  const auto a = arena(options());
  const auto used = filled_blocks(*a, 1);
  EXPECT_TRUE(fails_with(outcome(load(*a, path())), errc::busy, "prefix_cache::load", 1, 0));
  ASSERT_TRUE(a->release(used));
  EXPECT_TRUE(fails_with(outcome(prefix_cache::load(*a, path(), stream_ref::per_thread())),
                         errc::invalid_argument, "prefix_cache::load"));
  EXPECT_FALSE(load(*a, path("none.smi")));
  // An image of something else.
  const growable_buffer b = filled(1, "weights", 1);
  const std::string tag = "weights";
  ASSERT_TRUE(snapshot::save(dev(), {&tag, 1}, path("weights.smi")));
  EXPECT_TRUE(fails_with(outcome(load(*a, path("weights.smi"))), errc::invalid_argument,
                         "prefix_cache::load"));
  // Not enough memory for all: none is cached, and prepare() gives back what some have.
  ASSERT_TRUE(a->trim());
  {
    leave_free(2);
    const auto back = load(*a, path());
    ASSERT_FALSE(back);
    EXPECT_TRUE(back.error().is(errc::out_of_memory)) << back.error().message();
    EXPECT_EQ(a->stats().used + a->stats().cached, 0u);
  }
}

// A note that contradicts the pages, as a forged image has it.
TEST_F(prefix_cache_test, blocks_without_their_pages_are_refused) {
  const auto entries = saved(path(), options());
  const auto from = image::reader::open(path());
  ASSERT_TRUE(from);
  const auto &note = from->manifest().notes.front();
  ASSERT_EQ(note.name, prefix_cache::record_note);
  const auto a = arena(options());
  const std::string tag = "cache";
  int n = 0;
  const auto with_note = [&](std::vector<std::byte> bytes) {
    const auto source = arena(options());
    filled_blocks(*source, 24);
    snapshot::save_options how;
    how.image.replace = true;
    std::vector<image::manifest::note> notes = {{prefix_cache::record_note, std::move(bytes)}};
    how.notes = std::move(notes);
    how.within.emplace();
    for (std::size_t r = 0; r < 2; ++r) {
      how.within->push_back({source->range().begin + r * (source->range().bytes / 2), 3 * page()});
    }
    const std::string name = path(("forged" + std::to_string(n++) + ".smi").c_str());
    EXPECT_TRUE(snapshot::save(dev(), {&tag, 1}, name, how));
    auto back = load(*a, name);
    EXPECT_EQ(a->stats().used, 0u);
    EXPECT_EQ(a->stats().cached, back ? entries.size() : 0u);
    return outcome(back);
  };
  EXPECT_TRUE(with_note(note.bytes));
  std::vector<kv::block_id> evicted;
  ASSERT_TRUE(a->evict(SIZE_MAX, evicted));
  auto bytes = note.bytes;
  for (std::size_t cut = 0; cut < bytes.size(); cut += 29) {
    EXPECT_FALSE(with_note({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut)}));
    if (HasFailure()) break;
  }
  // The first entry's block, after the version, the shape and the number of entries.
  const std::size_t at = 4 + 4 * 8 + 3 * 4 + 4;
  for (const unsigned block : {0u, 23u, 24u, 63u, 64u, 255u}) {
    auto other = note.bytes;
    other[at] = static_cast<std::byte>(block);
    const bool same = other == note.bytes || block == 23u || block == 22u;
    if (same) continue;
    EXPECT_FALSE(with_note(other)) << block;
  }
}

TEST_F(prefix_cache_test, a_damaged_file_changes_nothing) {
  const auto entries = saved(path(), options());
  const auto size = std::filesystem::file_size(path());
  const auto a = arena(options());
  std::size_t refused = 0;
  for (std::uintmax_t at = 0; at < size; at += size / 41) {
    std::filesystem::copy_file(path(), path("damaged.smi"),
                               std::filesystem::copy_options::overwrite_existing);
    {
      std::fstream f(path("damaged.smi"), std::ios::in | std::ios::out | std::ios::binary);
      f.seekg(static_cast<std::streamoff>(at));
      const int was = f.get();
      f.seekp(static_cast<std::streamoff>(at));
      f.put(static_cast<char>(was ^ 0x40));
    }
    const auto back = load(*a, path("damaged.smi"));
    if (back) {  // a byte of the padding
      EXPECT_EQ(*back, entries);
      expect_cached(*a, entries);
      std::vector<kv::block_id> evicted;
      ASSERT_TRUE(a->evict(SIZE_MAX, evicted));
    } else {
      ++refused;
      EXPECT_EQ(a->stats().used + a->stats().cached, 0u);
    }
    std::filesystem::resize_file(path("damaged.smi"), at);
    EXPECT_FALSE(load(*a, path("damaged.smi")));
    if (HasFailure()) break;
  }
  EXPECT_GT(refused, 20u);
  ASSERT_TRUE(load(*a, path()));
  expect_cached(*a, entries);
}

TEST_F(prefix_cache_test, each_driver_call_fails_once) {
  constexpr const char *calls[] = {
      "cuMemCreate",          "cuMemMap",        "cuMemSetAccess",       "cuMemUnmap",
      "cuMemRelease",         "cuEventCreate",   "cuEventRecord",        "cuMemAddressReserve",
      "cuMemcpyDtoHAsync_v2", "cuMemHostAlloc",  "cuMemcpyHtoDAsync_v2", "cuStreamCreate",
      "cuStreamSynchronize",  "cuCtxSynchronize"};
  expect_unreturnable();
  const auto source = arena(options());
  const auto ids = filled_blocks(*source, 12);
  const auto entries = table(std::span(ids).first(10));
  const auto target = arena(options());
  const std::uint64_t refused = refuse_each(calls, [&] {
    bool done = true;
    std::filesystem::remove(path());
    if (!prefix_cache::save(*source, entries, path())) {
      done = false;
      EXPECT_FALSE(std::filesystem::exists(path()));
      EXPECT_TRUE(prefix_cache::save(*source, entries, path()));
    }
    expect_filled(*source, ids);
    if (!load(*target, path())) {
      done = false;
      EXPECT_EQ(target->stats().used + target->stats().cached, 0u);
      const auto back = load(*target, path());
      EXPECT_TRUE(back) << back.error().message();
    }
    expect_cached(*target, entries);
    std::vector<kv::block_id> evicted;
    EXPECT_TRUE(target->evict(SIZE_MAX, evicted));
    if (!target->trim()) {
      done = false;
      EXPECT_TRUE(target->trim());
    }
    EXPECT_EQ(target->stats().mapped_bytes, 0u);
    return done;
  });
  EXPECT_GT(refused, 15u);
  std::printf("note: prefix caches: %llu driver calls failed, one at a time\n",
              static_cast<unsigned long long>(refused));
  accept_background_errors();
}

TEST_F(prefix_cache_test, each_host_allocation_fails_once) {
  const auto source = arena(options());
  const auto ids = filled_blocks(*source, 12);
  const auto entries = table(std::span(ids).first(10));
  const auto target = arena(options());
  const std::string image = path(), again = path("again.smi");
  ASSERT_TRUE(prefix_cache::save(*source, entries, image));
  allocation_sweep all = fail_each_allocation(
      [&](failing_allocation &failing) {
        std::filesystem::remove(again);
        const auto made = failing([&] { return prefix_cache::save(*source, entries, again); });
        EXPECT_EQ(made.has_value(), std::filesystem::exists(again));
      },
      false, one_in(1));
  all += fail_each_allocation(
      [&](failing_allocation &failing) {
        const auto back = failing([&] { return load(*target, image); });
        if (back) expect_cached(*target, entries);
        std::vector<kv::block_id> evicted;
        EXPECT_EQ(target->stats().used, 0u);
        EXPECT_EQ(target->stats().cached, back ? entries.size() : 0u);
        ASSERT_TRUE(target->evict(SIZE_MAX, evicted));
        ASSERT_TRUE(target->trim());
      },
      false, one_in(1));
  all.note("prefix caches");
  EXPECT_GT(all.points, fewest_points(100));
  accept_background_errors();
}

}  // namespace
}  // namespace stillmap::testing
