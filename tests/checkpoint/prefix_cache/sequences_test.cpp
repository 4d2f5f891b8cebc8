// Sequences whose tokens are saved and loaded, and handed off: every byte, what they share, and failures.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/checkpoint/prefix_cache/fixture.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/refuse_each.h"

namespace stillmap::testing {
namespace {

using prefix_cache::sequence_entry;

class sequence_cache_test : public saved_cache_fixture {
 protected:
  // 32 tokens in a page group, which is a page in each of two ranges.
  kv::sequence_arena_options shape(std::size_t token_bytes = 0) const {
    return {.shape = {4, 2, token_bytes != 0 ? token_bytes : page() / 128},
            .longest = 160,
            .sequences = 8,
            .layers_per_range = 2,
            .tag = "cache"};
  }
  kv::sequence_arena_options sendable() const {
    auto o = shape();
    o.pool = *page_pool::create(dev(), {.exportable = handle_type::posix_fd, .keep_free = 0});
    return o;
  }
  std::unique_ptr<kv::sequence_arena> made(const kv::sequence_arena_options &o) const {
    auto out = kv::sequence_arena::create(dev(), o);
    EXPECT_TRUE(out) << out.error().message();
    return out ? std::move(*out) : nullptr;
  }
  static status begin(kv::sequence_arena &a) {
    const status prepared = a.prepare(stream_ref::legacy());
    return prepared ? a.begin_step(stream_ref::legacy()) : prepared;
  }

  // Byte b of what a part of token i holds, of a sequence whose tokens have the seed, is this more than pattern()[b].
  static unsigned char base(int seed, std::size_t i, std::uint32_t part) {
    return static_cast<unsigned char>(static_cast<std::size_t>(seed) * 101 + i * 37 + part * 11);
  }
  static std::vector<unsigned char> pattern(const kv::sequence_arena &a) {
    std::vector<unsigned char> out(a.layout().shape().token_bytes);
    for (std::size_t b = 0; b < out.size(); ++b) {
      out[b] = static_cast<unsigned char>(b + (b >> 8) * 7);
    }
    return out;
  }
  template <class Act>
  static void each_part(const kv::sequence_arena &a, kv::sequence_id s, std::size_t token,
                        const Act &act) {
    const kv::shape &of = a.layout().shape();
    for (std::uint32_t l = 0; l < of.layers; ++l) {
      for (std::uint32_t t = 0; t < of.tensors; ++t) {
        act(static_cast<unsigned char *>(
                (a.tensor(s, l, t) + token * a.layout().block_stride()).pointer()),
            l * of.tensors + t);
      }
    }
  }
  static void write(const kv::sequence_arena &a, kv::sequence_id s, std::size_t first,
                    std::size_t end, int seed) {
    const std::vector<unsigned char> bytes = pattern(a);
    for (std::size_t i = first; i < end; ++i) {
      each_part(a, s, i, [&](unsigned char *at, std::uint32_t part) {
        const unsigned char more = base(seed, i, part);
        for (std::size_t b = 0; b < bytes.size(); ++b) {
          at[b] = static_cast<unsigned char>(bytes[b] + more);
        }
      });
    }
  }
  static bool has(const kv::sequence_arena &a, kv::sequence_id s, std::size_t first,
                  std::size_t end, int seed) {
    const std::vector<unsigned char> bytes = pattern(a);
    unsigned different = 0;
    for (std::size_t i = first; i < end; ++i) {
      each_part(a, s, i, [&](const unsigned char *at, std::uint32_t part) {
        const unsigned char more = base(seed, i, part);
        for (std::size_t b = 0; b < bytes.size(); ++b) {
          different |= at[b] ^ static_cast<unsigned char>(bytes[b] + more);
        }
      });
    }
    return different == 0;
  }

  // Sequences of which the first, that the others have their beginnings of, is gone:
  // 100 tokens, 70 of the first; 130, 96 of the second; 64 of the first; 10 of their own; none.
  std::vector<sequence_entry> fill(kv::sequence_arena &a) const {
    const kv::sequence_id first = *a.add();
    EXPECT_TRUE(a.reserve(first, 80));
    EXPECT_TRUE(begin(a));
    write(a, first, 0, 80, 1);
    const kv::sequence_id second = *a.fork(first, 70);
    EXPECT_TRUE(a.reserve(second, 100));
    const kv::sequence_id fourth = *a.fork(first, 64);
    EXPECT_TRUE(begin(a));
    wait();
    write(a, second, 70, 100, 2);
    const kv::sequence_id third = *a.fork(second, 96);
    EXPECT_TRUE(a.reserve(third, 130));
    const kv::sequence_id fifth = *a.add(), empty = *a.add();
    EXPECT_TRUE(a.reserve(fifth, 10));
    EXPECT_TRUE(begin(a));
    wait();
    write(a, third, 96, 130, 3);
    write(a, fifth, 0, 10, 4);
    EXPECT_TRUE(a.remove(first));
    EXPECT_TRUE(begin(a));
    const std::string any("\0\xff", 2);
    return {{fourth, 64, "fourth"},
            {second, 100, any},
            {third, 130, "third"},
            {fifth, 10, "fifth"},
            {empty, 0, ""}};
  }
  // They have the tokens, and what they share is there once.
  static void expect_back(const kv::sequence_arena &a, std::span<const sequence_entry> back,
                          std::span<const sequence_entry> saved) {
    ASSERT_EQ(back.size(), saved.size());
    for (std::size_t i = 0; i < back.size(); ++i) {
      EXPECT_EQ(back[i].tokens, saved[i].tokens);
      EXPECT_EQ(back[i].key, saved[i].key);
      EXPECT_GE(a.capacity(back[i].sequence), back[i].tokens);
      const auto is = [&](std::size_t first, std::size_t end, int seed) {
        return has(a, back[i].sequence, first, end, seed);
      };
      if (saved[i].key == "fourth") {
        EXPECT_TRUE(is(0, 64, 1));
      } else if (saved[i].key == "third") {
        EXPECT_TRUE(is(0, 70, 1) && is(70, 96, 2) && is(96, 130, 3));
      } else if (saved[i].key == "fifth") {
        EXPECT_TRUE(is(0, 10, 4));
      } else {
        EXPECT_TRUE(is(0, std::min<std::size_t>(back[i].tokens, 70), 1));
        EXPECT_TRUE(is(70, std::max<std::size_t>(back[i].tokens, 70), 2));
      }
    }
  }
  static void end(kv::sequence_arena &a, std::span<const sequence_entry> entries) {
    for (const sequence_entry &e : entries) EXPECT_TRUE(a.remove(e.sequence));
    ASSERT_TRUE(begin(a));
    ASSERT_TRUE(a.trim());
    EXPECT_EQ(a.stats().mapped_bytes, 0u);
  }
  static auto load(kv::sequence_arena &a, const std::string &from) {
    return prefix_cache::load(a, from, stream_ref::legacy());
  }
};

TEST_F(sequence_cache_test, tokens_come_back_and_are_shared_as_before) {
  const auto in_the_way = arena(options("first"));
  for (const std::size_t token_bytes : {page() / 128, page() / 96, page() / 128 * 3 / 2}) {
    SCOPED_TRACE(token_bytes);
    const auto o = shape(token_bytes);
    std::vector<sequence_entry> saved;
    std::size_t memory = 0;
    for (const bool reversed : {false, true}) {
      {
        const auto a = made(o);
        saved = fill(*a);
        memory = a->stats().memory_bytes;
        if (reversed) std::reverse(saved.begin(), saved.end());
        const auto written = prefix_cache::save(*a, saved, path());
        ASSERT_TRUE(written) << written.error().message();
        EXPECT_EQ(written->contents_bytes, memory);  // once
        expect_back(*a, saved, saved);
      }
      const auto second = arena(options("second"));
      const auto a = made(o);
      auto back = load(*a, path());
      ASSERT_TRUE(back) << back.error().message();
      expect_back(*a, *back, saved);
      EXPECT_EQ(a->stats().memory_bytes, memory);

      // They are sequences as any: they grow, and are forked and removed, in any order.
      for (sequence_entry &e : *back) {
        ASSERT_TRUE(a->reserve(e.sequence, 150));
        ASSERT_TRUE(begin(*a));
        write(*a, e.sequence, e.tokens, 150, 7);
        const auto fork = a->fork(e.sequence, e.tokens);
        ASSERT_TRUE(fork) << fork.error().message();
        ASSERT_TRUE(a->remove(e.sequence));
        e.sequence = *fork;
        ASSERT_TRUE(begin(*a));
        wait();
      }
      expect_back(*a, *back, saved);
      end(*a, *back);
      std::filesystem::remove(path());
    }
  }
}

TEST_F(sequence_cache_test, slots_with_spare_memory_are_taken_too) {
  auto o = shape();
  o.spare_bytes = std::size_t{1} << 40;
  const auto a = made(o);
  const auto saved = fill(*a);
  ASSERT_TRUE(prefix_cache::save(*a, saved, path()));
  for (int i = 0; i < 2; ++i) {
    for (const sequence_entry &e : saved) static_cast<void>(a->remove(e.sequence));
    ASSERT_TRUE(begin(*a));
    const auto back = load(*a, path());
    ASSERT_TRUE(back) << back.error().message();
    expect_back(*a, *back, saved);
    for (const sequence_entry &e : *back) {
      // The slot, and not the sequence that was.
      EXPECT_FALSE(a->has({e.sequence.slot, e.sequence.serial - 1}));
    }
    for (const sequence_entry &e : *back) ASSERT_TRUE(a->remove(e.sequence));
  }
}

TEST_F(sequence_cache_test, errors_of_save) {
  const auto a = made(shape());
  const auto all = fill(*a);
  const auto save = [&](const std::vector<sequence_entry> &entries) {
    return outcome(prefix_cache::save(*a, entries, path()));
  };
  const kv::sequence_id second = all[1].sequence, third = all[2].sequence;
  constexpr const char *name = "prefix_cache::save";
  EXPECT_TRUE(fails_with(save({{{second.slot, second.serial + 1}, 1, "a"}}), errc::invalid_argument,
                         name, second.slot, 0));
  EXPECT_TRUE(fails_with(save({{second, 100, "a"}, {second, 1, "b"}}), errc::invalid_argument, name,
                         second.slot, 0));
  EXPECT_TRUE(fails_with(save({{second, 129, "a"}}), errc::invalid_argument, name, 129, 128));
  EXPECT_TRUE(fails_with(save({{second, 1, std::string(4097, 'a')}}), errc::invalid_argument, name,
                         4097, 4096));
  // Tokens that end in a page of another: whoever goes on there would write into that one's tokens.
  EXPECT_TRUE(fails_with(save({{third, 130, "a"}, {second, 90, "b"}}), errc::invalid_argument, name,
                         90, 0));
  EXPECT_TRUE(fails_with(save({{second, 90, "b"}, {third, 130, "a"}}), errc::invalid_argument, name,
                         90, 0));
  EXPECT_TRUE(save({{second, 90, "b"}}));  // of one that is not saved
  ASSERT_TRUE(a->reserve(second, 150));
  ASSERT_TRUE(a->prepare(stream_ref::legacy()));
  EXPECT_TRUE(fails_with(save({{second, 100, "b"}}), errc::busy, name));
  ASSERT_TRUE(a->begin_step(stream_ref::legacy()));
  const auto s = checkpoint::suspender::create(dev());
  ASSERT_TRUE((*s)->suspend("cache"));
  EXPECT_TRUE(fails_with(save(all), errc::busy, name));
  ASSERT_TRUE((*s)->resume("cache"));
  std::filesystem::remove(path());
  EXPECT_TRUE(save(all));
}

TEST_F(sequence_cache_test, errors_of_load) {
  const auto source = made(shape());
  const auto saved = fill(*source);
  ASSERT_TRUE(prefix_cache::save(*source, saved, path()));
  const auto refused = [&](kv::sequence_arena_options o, const char *found, const char *expected) {
    const auto a = made(o);
    const auto back = load(*a, path());
    ASSERT_FALSE(back);
    EXPECT_TRUE(back.error().is(errc::invalid_argument)) << back.error().message();
    EXPECT_NE(back.error().detail().found.find(found), std::string::npos) << back.error().message();
    EXPECT_NE(back.error().detail().expected.find(expected), std::string::npos)
        << back.error().message();
    EXPECT_EQ(a->stats().mapped_bytes, 0u);
  };
  auto o = shape();
  o.longest = 192;
  refused(o, "of 160 tokens", "of 192 tokens");
  o = shape();
  o.sequences = 9;
  refused(o, "8 sequences", "9 sequences");
  o = shape();
  o.tag = "other";
  refused(o, "cache", "other");

  constexpr const char *name = "prefix_cache::load";
  const auto a = made(shape());
  const kv::sequence_id one = *a->add();
  EXPECT_TRUE(fails_with(outcome(load(*a, path())), errc::busy, name, 1, 0));
  ASSERT_TRUE(a->reserve(one, 1));
  ASSERT_TRUE(a->prepare(stream_ref::legacy()));
  ASSERT_TRUE(a->remove(one));
  EXPECT_TRUE(fails_with(outcome(load(*a, path())), errc::busy, name));  // begin_step() is missing
  ASSERT_TRUE(begin(*a));
  EXPECT_TRUE(fails_with(outcome(prefix_cache::load(*a, path(), stream_ref::per_thread())),
                         errc::invalid_argument, name));
  // Images of the other kind.
  const auto blocks = arena(options());
  EXPECT_TRUE(fails_with(outcome(prefix_cache::load(*blocks, path(), stream_ref::legacy())),
                         errc::invalid_argument, name));
  const auto entries = fill_cache(*blocks);
  ASSERT_TRUE(prefix_cache::save(*blocks, entries, path("blocks.smi")));
  EXPECT_TRUE(fails_with(outcome(load(*a, path("blocks.smi"))), errc::invalid_argument, name));
  // Not enough memory for all: there is none, and the next step gives back what some have.
  ASSERT_TRUE(a->trim());
  leave_free(2);
  const auto back = load(*a, path());
  ASSERT_FALSE(back);
  EXPECT_TRUE(back.error().is(errc::out_of_memory)) << back.error().message();
  EXPECT_EQ(a->stats().sequences, 0u);
  EXPECT_TRUE(begin(*a));
  EXPECT_TRUE(a->trim());
  EXPECT_EQ(a->stats().mapped_bytes, 0u);
}

TEST_F(sequence_cache_test, places_that_no_arena_can_have_are_refused) {
  const auto a = made(shape());
  using places = std::vector<kv::sequence_place>;
  const auto claim = [&](const places &p) {
    const auto made_of_it = a->claim(p, stream_ref::legacy());
    EXPECT_EQ(a->stats().sequences, made_of_it ? p.size() : 0u);
    if (made_of_it) {
      for (const kv::sequence_id s : *made_of_it) EXPECT_TRUE(a->remove(s));
      EXPECT_TRUE(begin(*a));
    }
    return outcome(made_of_it);
  };
  constexpr const char *name = "kv::sequence_arena::claim";
  const auto bad = errc::invalid_argument;
  EXPECT_TRUE(fails_with(claim({{16, 1}}), bad, name, 16, 16));
  EXPECT_TRUE(fails_with(claim({{3, 1}, {3, 1}}), bad, name, 3, 16));
  EXPECT_TRUE(fails_with(claim({{3, 161}}), bad, name, 161, 160));
  EXPECT_TRUE(fails_with(claim(places(9)), bad, name, 9, 8));
  EXPECT_TRUE(fails_with(claim({{0, 64, 1, 0}}), bad, name, 0, 0));             // with itself
  EXPECT_TRUE(fails_with(claim({{0, 64, 1, 1}, {1, 64}}), bad, name, 0, 0));    // with a later one
  EXPECT_TRUE(fails_with(claim({{0, 64}, {1, 65, 3, 0}}), bad, name, 1, 0));    // not full here
  EXPECT_TRUE(fails_with(claim({{0, 63}, {1, 96, 2, 0}}), bad, name, 1, 0));    // not full there
  EXPECT_TRUE(fails_with(claim({{0, 64}, {1, 64, 1, 400}}), bad, name, 1, 0));  // with none
  EXPECT_TRUE(claim({{9, 64}, {1, 96, 2, 0}, {15, 160, 3, 1}}));
  EXPECT_TRUE(claim({}));
  const auto kept = a->claim(places{{9, 64}, {1, 96, 2, 0}, {15, 160, 3, 1}}, stream_ref::legacy());
  ASSERT_TRUE(kept);
  EXPECT_EQ(a->stats().memory_bytes, 5 * 2 * page());
  EXPECT_EQ(a->capacity((*kept)[2]), 160u);
}

// A note that contradicts the pages, as a forged image has it.
TEST_F(sequence_cache_test, a_forged_note_is_refused) {
  const auto source = made(shape());
  const auto saved = fill(*source);
  ASSERT_TRUE(prefix_cache::save(*source, saved, path()));
  const auto from = image::reader::open(path());
  ASSERT_TRUE(from);
  ASSERT_EQ(from->manifest().notes.front().name, prefix_cache::sequence_record_note);
  const std::vector<std::byte> note = from->manifest().notes.front().bytes;
  const auto a = made(shape());
  int n = 0, refused = 0;
  const auto with_note = [&](std::vector<std::byte> bytes) {
    snapshot::save_options how;
    std::vector<image::manifest::note> notes = {
        {prefix_cache::sequence_record_note, std::move(bytes)}};
    how.notes = std::move(notes);
    how.within = {source->range()};
    const std::string tag = "cache";
    const std::string name = path(("forged" + std::to_string(n++) + ".smi").c_str());
    const auto written = snapshot::save(dev(), {&tag, 1}, name, how);
    EXPECT_TRUE(written) << written.error().message();
    auto back = load(*a, name);
    std::filesystem::remove(name);
    if (back) {
      for (const sequence_entry &e : *back) EXPECT_TRUE(a->remove(e.sequence));
      EXPECT_TRUE(begin(*a));
    } else {
      ++refused;
    }
    EXPECT_EQ(a->stats().sequences, 0u);
    EXPECT_TRUE(a->trim());
    return outcome(back);
  };
  // The source has no memory but that of the entries: its image is what save() writes.
  const status good = with_note(note);
  EXPECT_TRUE(good) << good.error().message();
  for (std::size_t cut = 0; cut < note.size(); cut += 7) {
    EXPECT_FALSE(with_note({note.begin(), note.begin() + static_cast<std::ptrdiff_t>(cut)}));
    if (HasFailure()) return;
  }
  // Each byte of the entries but their keys: slot, tokens, shared, with.
  std::size_t at = 4 + 4 * 8 + 3 * 4 + 4;
  for (const sequence_entry &e : saved) {
    for (std::size_t i = 0; i < 20; ++i) {
      auto bytes = note;
      bytes[at + i] ^= std::byte{0x11};
      const auto was = refused;
      static_cast<void>(with_note(std::move(bytes)));
      // As many tokens more or less as the page has, or another `with` where nothing is shared: nothing contradicts.
      const bool may_be_good =
          i == 4 || (i >= 16 && (e.key == "fourth" || e.key == "fifth" || e.key.empty()));
      if (!may_be_good) {
        EXPECT_EQ(refused, was + 1) << e.key << ", byte " << i;
      }
      if (HasFailure()) return;
    }
    at += 20 + 4 + e.key.size();
  }
}

TEST_F(sequence_cache_test, another_arena_adopts_what_is_sent) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  auto first = made(sendable());
  const auto saved = fill(*first);
  const std::size_t memory = first->stats().memory_bytes;
  auto moved = exchanged(
      [&](handoff::connection &to) { return prefix_cache::send(*first, saved, to, anywhere()); });
  ASSERT_TRUE(moved.sent) << moved.sent.error().message();
  ASSERT_TRUE(moved.received) << moved.received.error().message();
  EXPECT_EQ(moved.sent->bytes, memory + page());  // and the table
  first.reset();
  {
    const auto blocks = arena(options());
    EXPECT_FALSE(prefix_cache::adopt(*blocks, *moved.received));
    EXPECT_EQ(blocks->stats().mapped_bytes, 0u);
    auto o = sendable();
    o.longest = 192;
    const auto longer = made(o);
    EXPECT_TRUE(fails_with(outcome(prefix_cache::adopt(*longer, *moved.received)),
                           errc::invalid_argument, "prefix_cache::adopt"));
  }
  const auto a = made(sendable());
  const driver_counts before = counts();
  const auto back = prefix_cache::adopt(*a, *moved.received);
  ASSERT_TRUE(back) << back.error().message();
  const driver_counts cost = counts() - before;
  EXPECT_EQ(cost.bytes_to_device + cost.bytes_on_device, 0u);
  { const auto done = std::move(*moved.received); }
  expect_back(*a, *back, saved);
  EXPECT_EQ(a->stats().memory_bytes, memory);
  EXPECT_EQ(dev().space().stats().physical.bytes(), memory);
  const auto s = checkpoint::suspender::create(dev());
  ASSERT_TRUE((*s)->suspend("cache"));
  ASSERT_TRUE((*s)->resume("cache"));
  expect_back(*a, *back, saved);
  end(*a, *back);
  EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
}

TEST_F(sequence_cache_test, each_driver_call_fails_once) {
  constexpr const char *calls[] = {
      "cuMemCreate",          "cuMemMap",        "cuMemSetAccess",       "cuMemUnmap",
      "cuMemRelease",         "cuEventCreate",   "cuEventRecord",        "cuMemAddressReserve",
      "cuMemcpyDtoHAsync_v2", "cuMemHostAlloc",  "cuMemcpyHtoDAsync_v2", "cuStreamCreate",
      "cuStreamSynchronize",  "cuCtxSynchronize"};
  expect_unreturnable();
  const auto source = made(shape());
  auto saved = fill(*source);
  saved.resize(2);  // which share pages
  const auto target = made(shape());
  const std::uint64_t refused = refuse_each(calls, [&] {
    bool done = true;
    std::filesystem::remove(path());
    if (!prefix_cache::save(*source, saved, path())) {
      done = false;
      EXPECT_FALSE(std::filesystem::exists(path()));
      EXPECT_TRUE(prefix_cache::save(*source, saved, path()));
    }
    expect_back(*source, saved, saved);
    auto back = load(*target, path());
    if (!back) {
      done = false;
      EXPECT_EQ(target->stats().sequences, 0u);
      // What was refused may have left something for begin_step() to say.
      static_cast<void>(begin(*target));
      back = load(*target, path());
      EXPECT_TRUE(back) << back.error().message();
      if (!back) return true;
    }
    expect_back(*target, *back, saved);
    for (const sequence_entry &e : *back) EXPECT_TRUE(target->remove(e.sequence));
    if (!begin(*target) || !target->trim()) {
      done = false;
      static_cast<void>(begin(*target));
      EXPECT_TRUE(target->trim());
    }
    EXPECT_EQ(target->stats().mapped_bytes, 0u);
    return done;
  });
  EXPECT_GT(refused, 15u);
  std::printf("note: sequences that are saved: %llu driver calls failed, one at a time\n",
              static_cast<unsigned long long>(refused));
  accept_background_errors();
}

TEST_F(sequence_cache_test, each_call_of_an_adoption_fails_once) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  auto source = made(sendable());
  const auto saved = fill(*source);
  auto moved = exchanged(
      [&](handoff::connection &to) { return prefix_cache::send(*source, saved, to, anywhere()); });
  ASSERT_TRUE(moved.received) << moved.received.error().message();
  source.reset();
  const auto target = made(sendable());
  const auto removed = [&](std::span<const sequence_entry> back) {
    for (const sequence_entry &e : back) EXPECT_TRUE(target->remove(e.sequence));
    static_cast<void>(begin(*target));
    EXPECT_TRUE(target->trim());
    EXPECT_EQ(target->stats().mapped_bytes, 0u);
  };
  constexpr const char *calls[] = {"cuMemMap", "cuMemSetAccess", "cuMemcpyDtoH_v2",
                                   "cuCtxSynchronize"};
  const std::uint64_t refused = refuse_each(calls, [&] {
    auto back = prefix_cache::adopt(*target, *moved.received);
    const bool done = back.has_value();
    if (!done) {
      EXPECT_EQ(target->stats().sequences, 0u);
      static_cast<void>(begin(*target));
      back = prefix_cache::adopt(*target, *moved.received);
      EXPECT_TRUE(back) << back.error().message();
      if (!back) return true;
    }
    expect_back(*target, *back, saved);
    for (const sequence_entry &e : *back) EXPECT_TRUE(target->remove(e.sequence));
    static_cast<void>(begin(*target));
    if (!target->trim()) {
      EXPECT_TRUE(target->trim());
    }
    return done;
  });
  EXPECT_GT(refused, 4u);
  const allocation_sweep all = fail_each_allocation(
      [&](failing_allocation &failing) {
        const auto back = failing([&] { return prefix_cache::adopt(*target, *moved.received); });
        EXPECT_EQ(target->stats().sequences, back ? saved.size() : 0u);
        if (back) expect_back(*target, *back, saved);
        removed(back ? std::span<const sequence_entry>(*back) : std::span<const sequence_entry>());
      },
      false, one_in(1));
  all.note("sequences that are adopted");
  EXPECT_GT(all.points, fewest_points(30));
  accept_background_errors();
}

TEST_F(sequence_cache_test, each_host_allocation_fails_once) {
  const auto source = made(shape());
  auto saved = fill(*source);
  saved.resize(2);
  const auto target = made(shape());
  const std::string image = path(), again = path("again.smi");
  ASSERT_TRUE(prefix_cache::save(*source, saved, image));
  allocation_sweep all = fail_each_allocation(
      [&](failing_allocation &failing) {
        std::filesystem::remove(again);
        const auto written = failing([&] { return prefix_cache::save(*source, saved, again); });
        EXPECT_EQ(written.has_value(), std::filesystem::exists(again));
      },
      false, one_in(1));
  all += fail_each_allocation(
      [&](failing_allocation &failing) {
        const auto back = failing([&] { return load(*target, image); });
        EXPECT_EQ(target->stats().sequences, back ? saved.size() : 0u);
        if (back) expect_back(*target, *back, saved);
        if (back) {
          for (const sequence_entry &e : *back) EXPECT_TRUE(target->remove(e.sequence));
        }
        static_cast<void>(begin(*target));
        ASSERT_TRUE(target->trim());
      },
      false, one_in(1));
  all.note("sequences that are saved");
  EXPECT_GT(all.points, fewest_points(100));
  accept_background_errors();
}

}  // namespace
}  // namespace stillmap::testing
