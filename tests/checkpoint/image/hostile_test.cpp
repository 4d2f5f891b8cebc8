// Forged images: all digests are valid, but the data that they protect is not.
#include <zstd.h>

#include <cstring>
#include <fstream>
#include <map>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/checkpoint/image/parts.h"
#include "tests/checkpoint/image/forged.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

class image_hostile : public image_test {
 protected:
  void SetUp() override {
    sample_ = make_sample({5, 12, 60});
    write_options options = small();
    put("a.smi", sample_, options);
    good_ = bytes_of_file(path("a.smi"));
    options.compress = codec::lz4;
    put("lz4.smi", sample_, options);
    options.compress = codec::zstd;
    put("zstd.smi", sample_, options);
  }

  // Opening fails with this code, the file's name and the part.
  void refused(const char *what, const std::vector<std::byte> &bytes, const char *where,
               errc c = errc::corrupt) {
    SCOPED_TRACE(what);
    put_file(path("b.smi"), bytes);
    const auto r = reader::open(path("b.smi"));
    ASSERT_FALSE(r);
    EXPECT_TRUE(r.error().is(c)) << r.error().message();
    EXPECT_TRUE(r.error().detail().where.starts_with(where)) << r.error().message();
    EXPECT_NE(r.error().message().find("b.smi"), std::string::npos) << r.error().message();
  }
  // Opening succeeds; reading detects the damage.
  void found_by_reading(const char *what, const std::vector<std::byte> &bytes) {
    SCOPED_TRACE(what);
    put_file(path("b.smi"), bytes);
    const auto r = reader::open(path("b.smi"));
    ASSERT_TRUE(r) << r.error().message();
    const auto v = r->verify();
    ASSERT_FALSE(v);
    EXPECT_TRUE(v.error().is(errc::corrupt)) << v.error().message();
    std::vector<std::byte> to(sample_.contents.size());
    EXPECT_FALSE(r->read(0, to));
  }

  void table_refused(const char *what,
                     const std::function<void(std::vector<chunk_record> &)> &change,
                     const char *where = part::chunk_table) {
    forged f = forged::of(good_);
    change(f.table);
    refused(what, f.bytes(), where);
  }
  void head_refused(const char *what, const std::function<void(superblock &)> &change,
                    errc c = errc::corrupt) {
    refused(what, forged::of(good_).bytes(change), part::superblock, c);
  }
  void manifest_refused(const char *what, const std::function<void(manifest &)> &change) {
    forged f = forged::of(good_);
    manifest m = sample_.what;
    change(m);
    EXPECT_FALSE(check(m)) << what;  // and a writer would not write it
    f.set_manifest(m);
    refused(what, f.bytes(), part::manifest);
  }

  static std::size_t first(const std::vector<chunk_record> &t, chunk_kind k, std::size_t from = 0) {
    while (from < t.size() && t[from].kind != k) ++from;
    EXPECT_LT(from, t.size());
    return from;
  }

  sample sample_;
  std::vector<std::byte> good_;
};

TEST_F(image_hostile, put_together_unchanged_it_is_an_image) {
  put_file(path("b.smi"), forged::of(good_).bytes());
  EXPECT_EQ(bytes_of_file(path("b.smi")), good_);
  expect_holds("b.smi", sample_);
}

TEST_F(image_hostile, superblocks) {
  const superblock h = forged::of(good_).head;
  head_refused("no chunks at all", [](superblock &s) { s.chunk_bytes = 0; });
  head_refused("odd chunks", [](superblock &s) { s.chunk_bytes = 3 << 20; });
  head_refused("huge chunks", [](superblock &s) { s.chunk_bytes = 1 << 31; });
  head_refused("tiny chunks", [](superblock &s) { s.chunk_bytes = 4096; });
  head_refused("longer", [](superblock &s) { s.file_bytes += 4096; });
  head_refused("endless", [](superblock &s) { s.file_bytes = UINT64_MAX; });
  head_refused("no bytes", [](superblock &s) { s.file_bytes = 0; });
  head_refused("countless chunks", [](superblock &s) { s.chunks = UINT64_MAX / 64 + 2; });
  head_refused("more chunks", [](superblock &s) { ++s.chunks; });
  head_refused("fewer chunks", [](superblock &s) { --s.chunks; });
  head_refused("other contents", [](superblock &s) { s.contents_bytes += 4096; });
  head_refused("half a block", [](superblock &s) { s.contents_bytes += 1; });
  head_refused("a table in the superblock", [](superblock &s) { s.chunk_table.offset = 0; });
  head_refused("an odd table", [](superblock &s) { s.chunk_table.offset += 8; });
  head_refused("a table past the end", [](superblock &s) { s.chunk_table.offset = 1ull << 60; });
  head_refused("a table at the end of numbers",
               [](superblock &s) { s.chunk_table.offset = UINT64_MAX - 4095; });
  head_refused("a longer table", [](superblock &s) { s.chunk_table.bytes += 64; });
  head_refused("a manifest over the table",
               [&](superblock &s) { s.manifest.offset = h.chunk_table.offset; });
  head_refused("a manifest of nothing", [](superblock &s) { s.manifest.bytes = 0; });
  head_refused("a huge manifest", [](superblock &s) { s.manifest.bytes = 1ull << 40; });
  head_refused("an endless manifest", [](superblock &s) { s.manifest.bytes = UINT64_MAX; });
  head_refused("seals of nobody", [](superblock &s) { s.seals = {8192, 32}; });
  head_refused("a signature of nobody", [](superblock &s) { s.signature = {8192, 96}; });
  head_refused("a sum of no seals", [](superblock &s) { s.seals_sum.bytes[4] = std::byte{1}; });
  head_refused("no number", [](superblock &s) { s.image = {}; });
  head_refused("no set", [](superblock &s) { s.set = {}; });
  head_refused("a set of nothing", [](superblock &s) { s.set_images = 0; });
  head_refused("past the set", [](superblock &s) { s.set_index = 1; });
  head_refused("a huge set", [](superblock &s) { s.set_images = 1 << 20; });
  head_refused("a parent it has not", [](superblock &s) { s.parent.bytes[0] = std::byte{1}; });
  head_refused("a root it has not", [](superblock &s) { s.parent_root.bytes[0] = std::byte{1}; });
  head_refused("no parent", [](superblock &s) { s.flags |= flag_incremental; });
  head_refused("its own parent", [](superblock &s) {
    s.flags |= flag_incremental;
    s.parent = s.image;
    s.parent_root.bytes[0] = std::byte{1};
  });
  head_refused("signed without a signature", [](superblock &s) { s.flags |= flag_signed; });
  head_refused(
      "unknown flags", [](superblock &s) { s.flags |= 8; }, errc::not_supported);
  head_refused(
      "unknown high flags", [](superblock &s) { s.flags |= 1ull << 63; }, errc::not_supported);
}

TEST_F(image_hostile, versions) {
  auto b = good_;
  b[8] = std::byte{3};
  forged::reseal(b);
  refused("a later version", b, part::superblock, errc::not_supported);
  b = good_;
  b[400] = std::byte{1};
  forged::reseal(b);
  refused("a field that there is not", b, part::superblock);
  b = good_;
  b[132] = std::byte{1};
  forged::reseal(b);
  refused("a field between others that there is not", b, part::superblock);
  b[12] = std::byte{1};
  forged::reseal(b);
  put_file(path("b.smi"), b);
  expect_holds("b.smi", sample_);  // a minor version that says more
  b[0] = std::byte{'P'};
  forged::reseal(b);
  refused("another magic", b, part::superblock);
  b = good_;
  b[4060] ^= std::byte{1};
  const auto sum = digest_of(bytes_view(b).first(4080));
  store(std::span(b), 4080, sum.bytes);
  refused("a root of something else", b, part::superblock);
}

TEST_F(image_hostile, files_that_are_no_images) {
  refused("noise", std::vector<std::byte>(good_.size(), std::byte{7}), "superblock at 0");
  refused("zeros", std::vector<std::byte>(good_.size()), "superblock at 0");
  auto b = good_;
  b[0] = std::byte{'P'};
  forged::reseal(b);
  refused("another magic", b, "superblock at 0");
}

TEST_F(image_hostile, chunk_records) {
  const auto t = forged::of(good_).table;
  const std::size_t raw = first(t, chunk_kind::raw), raw2 = first(t, chunk_kind::raw, raw + 1),
                    zero = first(t, chunk_kind::zero), same = first(t, chunk_kind::same);
  using table = std::vector<chunk_record>;
  table_refused("an unknown kind", [&](table &r) { r[raw].kind = chunk_kind{6}; });
  table_refused("a kind far off", [&](table &r) { r[raw].kind = chunk_kind{255}; });
  table_refused("no bytes", [&](table &r) { r[zero].bytes = 0; });
  table_refused("odd bytes", [&](table &r) { r[zero].bytes -= 1; });
  table_refused("more than a chunk", [&](table &r) { r[zero].bytes = 1 << 30; });
  table_refused("not behind the one before", [&](table &r) { r[1].at += 4096; });
  table_refused("not from the beginning", [&](table &r) { r[0].at = UINT64_MAX; });
  table_refused("over another", [&](table &r) { r[raw].where = r[raw2].where; });
  table_refused("in the superblock", [&](table &r) { r[raw].where = 0; });
  table_refused("over the table", [&](table &r) { r[raw].where = 1 << 30; });
  table_refused("at the end of numbers", [&](table &r) { r[raw].where = UINT64_MAX - 4095; });
  table_refused("odd", [&](table &r) { r[raw].where += 1; });
  table_refused("stored as nothing", [&](table &r) { r[raw].stored = 0; });
  table_refused("stored as more", [&](table &r) { r[raw].stored += 1; });
  table_refused("lz4 of as much", [&](table &r) { r[raw].kind = chunk_kind::lz4; });
  table_refused("a zero chunk with bytes", [&](table &r) { r[zero].stored = 4096; });
  table_refused("a zero chunk somewhere", [&](table &r) { r[zero].where = 4096; });
  table_refused("a zero chunk of something", [&](table &r) { r[zero].contents = r[raw].contents; });
  table_refused("a zero chunk with a stored digest",
                [&](table &r) { r[zero].stored_bytes = r[raw].contents; });
  table_refused("the same as itself", [&](table &r) { r[same].where = same; });
  table_refused("the same as a later one", [&](table &r) { r[same].where = r.size() - 1; });
  table_refused("the same as none", [&](table &r) { r[same].where = UINT64_MAX; });
  table_refused("the same as zeros", [&](table &r) {
    ASSERT_LT(zero, same);
    r[same].where = zero;
  });
  table_refused("the same as another", [&](table &r) { r[same].contents = {}; });
  table_refused("a parent's without one", [&](table &r) { r[zero].kind = chunk_kind::parent; });
  table_refused("an extent left over", [&](table &r) {
    r[raw] = {r[raw].at, r[raw].bytes, 0, 0, chunk_kind::zero, {}, {}};
  });
  table_refused("one less", [&](table &r) { r.pop_back(); });
  table_refused("one more", [&](table &r) { r.push_back(r[zero]); });
  table_refused("none", [&](table &r) { r.clear(); });

  auto b = good_;  // the seven bytes behind the kind
  const superblock h = forged::of(good_).head;
  b[h.chunk_table.offset + 27] = std::byte{1};
  store(std::span(b), 216,
        sha256_of(bytes_view(b).subspan(h.chunk_table.offset, h.chunk_table.bytes)).bytes);
  forged::reseal(b);
  refused("where zeros should be", b, part::chunk_table);
}

TEST_F(image_hostile, manifests) {
  using m = manifest;
  manifest_refused("a page of nothing", [](m &w) { w.pages[1].bytes = 0; });
  manifest_refused("an odd page", [](m &w) { w.pages[1].bytes += 1; });
  manifest_refused("endless pages", [](m &w) { w.pages[1].bytes = UINT64_MAX - 4095; });
  manifest_refused("a page nowhere", [](m &w) { w.pages.push_back(w.pages[0]); });
  manifest_refused("blocks that overlap",
                   [](m &w) { w.blocks[1].begin = w.blocks[0].begin + 4096; });
  manifest_refused("blocks out of order", [](m &w) { std::swap(w.blocks[0], w.blocks[1]); });
  manifest_refused("a block of nothing", [](m &w) { w.blocks[0].bytes = 0; });
  manifest_refused("an endless block", [](m &w) { w.blocks.back().bytes = UINT64_MAX - 4095; });
  manifest_refused("no such tag", [](m &w) { w.blocks[0].tag = 99; });
  manifest_refused("no such page", [](m &w) { w.places[0].page = 1000; });
  manifest_refused("no such access", [](m &w) { w.places[0].access = 3; });
  manifest_refused("a place outside", [](m &w) { w.places.back().address += 1 << 30; });
  manifest_refused("an odd place", [](m &w) { w.places.back().address += 1; });
  manifest_refused("a place over the end of addresses",
                   [](m &w) { w.places.back().address = UINT64_MAX - 4095; });
  manifest_refused("places out of order", [](m &w) { std::swap(w.places[0], w.places[1]); });
  manifest_refused("places that overlap", [](m &w) { w.places[1].address = w.places[0].address; });
  manifest_refused("a note twice", [](m &w) { w.notes.push_back(w.notes[0]); });
  manifest_refused("a note without a name", [](m &w) { w.notes[0].name = ""; });
  manifest_refused("too many bytes of notes",
                   [](m &w) { w.notes[0].bytes.resize(max_note_bytes + 1); });
  manifest_refused("too many tags", [](m &w) { w.tags.resize(max_tags + 1); });
  manifest_refused("too many lists", [](m &w) { w.access_lists.resize(max_access_lists + 1); });

  // Valid by itself, but not the manifest of these chunks.
  forged f = forged::of(good_);
  manifest other = sample_.what;
  other.places.pop_back();
  while (!check(other)) other.pages.pop_back();
  f.set_manifest(other);
  refused("fewer pages than chunks", f.bytes(),
          other.pages.size() == sample_.what.pages.size() ? part::superblock : part::chunk_table);
}

// Each number alone is wrong, so that no other check refuses the manifest.
TEST_F(image_hostile, blocks_and_mappings_that_are_no_ranges) {
  using m = manifest;
  const m::block last = sample_.what.blocks.back();
  const std::uint64_t behind = last.begin + last.bytes + block_bytes;
  const auto with_block = [](std::uint64_t begin, std::uint64_t bytes) {
    return [=](m &w) { w.blocks.push_back({begin, bytes, 1, 0}); };
  };
  m empty_block = sample_.what;
  with_block(behind, block_bytes)(empty_block);
  ASSERT_TRUE(check(empty_block)) << "a block without mappings is valid";
  manifest_refused("a block at an odd address", with_block(behind + 1, block_bytes));
  manifest_refused("a block of odd size", with_block(behind, block_bytes + 1));
  manifest_refused("an empty block of no bytes", with_block(behind, 0));
  manifest_refused("a block over the end of addresses",
                   with_block(UINT64_MAX - (block_bytes - 1), block_bytes));

  m room = sample_.what;
  room.blocks.back().bytes += block_bytes;
  ASSERT_TRUE(check(room));
  manifest_refused("an odd place inside its block", [&](m &w) {
    w = room;
    w.places.back().address += 1;
  });
  m high;
  high.tags = {"t"};
  high.access_lists = {{}};
  high.pages = {{block_bytes, on_device(0), handle_type::none, false}};
  high.blocks = {{UINT64_MAX - (4 * block_bytes - 1), 2 * block_bytes, 0, 0}};
  high.places = {{UINT64_MAX - (3 * block_bytes - 1), 0, 0}};
  ASSERT_TRUE(check(high));
  manifest_refused("a place whose end is past the end of addresses", [&](m &w) {
    w = high;
    w.pages[0].bytes = 3 * block_bytes;
  });
}

TEST_F(image_hostile, manifests_that_are_no_flatbuffers) {
  forged f = forged::of(good_);
  const auto good = f.what;
  std::mt19937_64 random(1);
  for (std::size_t n : {1u, 4u, 8u, 15u, 16u, 40u}) {
    f.what.assign(good.begin(), good.begin() + static_cast<long>(n));
    refused("cut off", f.bytes(), part::manifest);
  }
  for (auto &b : f.what) b = static_cast<std::byte>(random());
  refused("noise", f.bytes(), part::manifest);
  const auto noise = decode_manifest(f.what.data(), f.what.size());
  ASSERT_FALSE(noise);
  EXPECT_EQ(noise.error().detail().where, "manifest at 0") << noise.error().message();
  // Any change is refused, or decodes to a valid manifest.
  std::size_t taken = 0;
  for (int i = 0; i < 4000; ++i) {
    f.what = good;
    for (int k = static_cast<int>(random() % 3); k >= 0; --k) {
      f.what[random() % f.what.size()] = static_cast<std::byte>(random());
    }
    const auto m = decode_manifest(f.what.data(), f.what.size());
    if (m) {
      ++taken;
      EXPECT_TRUE(check(*m));
    }
  }
  EXPECT_LT(taken, 4000u);
}

// The FlatBuffers verifier accepts unaligned structs, which not every processor can read.
TEST_F(image_hostile, manifests_with_numbers_at_odd_places) {
  const auto good = forged::of(good_).what;
  std::size_t odd = 0;
  for (std::size_t at = 0; at + 4 <= good.size(); at += 4) {
    for (const std::uint32_t by : {4u, 0u - 4u, 8u, 0u - 8u}) {
      auto b = good;
      store(std::span(b), at, load<std::uint32_t>(b, at) + by);
      const auto m = decode_manifest(b.data(), b.size());
      if (!m) odd += std::string_view(m.error().reason) == "a vector is not aligned";
    }
  }
  EXPECT_GT(odd, 0u);
}

TEST_F(image_hostile, compressed_bytes) {
  for (const char *name : {"lz4.smi", "zstd.smi"}) {
    const forged good = forged::of(bytes_of_file(path(name)));
    const std::size_t n = first(good.table, name[0] == 'l' ? chunk_kind::lz4 : chunk_kind::zstd);
    const chunk_record &r = good.table[n];
    const auto with = [&](const std::function<void(std::span<std::byte>)> &change) {
      forged f = good;
      const auto stored = std::span(f.extents).subspan(r.where - block_bytes, r.stored);
      change(stored);
      f.table[n].stored_bytes = digest_of(stored);
      return f.bytes();
    };
    std::mt19937_64 random(9);
    found_by_reading("noise", with([&](std::span<std::byte> b) {
                       for (auto &x : b) x = static_cast<std::byte>(random());
                     }));
    found_by_reading("0xff", with([&](std::span<std::byte> b) {
                       std::fill(b.begin(), b.end(), std::byte{0xff});
                     }));
    for (int i = 0; i < 200; ++i) {
      found_by_reading("a bit", with([&](std::span<std::byte> b) {
                         b[random() % b.size()] ^= static_cast<std::byte>(1u << random() % 8);
                       }));
    }
    forged shorter = good;  // the block ends early, and there is no more of it
    --shorter.table[n].stored;
    const auto stored = std::span(shorter.extents).subspan(r.where - block_bytes, r.stored);
    stored.back() = {};
    shorter.table[n].stored_bytes = digest_of(stored.first(r.stored - 1));
    found_by_reading("cut off", shorter.bytes());
  }
}

TEST_F(image_hostile, zstd_frames_of_other_sizes) {
  const forged good = forged::of(bytes_of_file(path("zstd.smi")));
  const std::size_t n = first(good.table, chunk_kind::zstd);
  for (const std::size_t size : {std::size_t{4096}, std::size_t{good.table[n].bytes} - 1,
                                 std::size_t{good.table[n].bytes} + 1, std::size_t{64} << 20}) {
    const std::vector<std::byte> plain(size, std::byte{3});
    std::vector<std::byte> frame(ZSTD_compressBound(size));
    frame.resize(ZSTD_compress(frame.data(), frame.size(), plain.data(), size, 1));
    forged f = good;
    chunk_record &r = f.table[n];
    ASSERT_LE(frame.size(), to_block(r.stored)) << size;
    const auto room = std::span(f.extents).subspan(r.where - block_bytes, to_block(r.stored));
    std::fill(room.begin(), room.end(), std::byte{});
    std::copy(frame.begin(), frame.end(), room.begin());
    // In the same blocks, so that no extent moves.
    r.stored = static_cast<std::uint32_t>(
        std::max<std::size_t>(frame.size(), (to_block(r.stored) - block_bytes) + 1));
    r.stored_bytes = digest_of(room.first(r.stored));
    found_by_reading("another size", f.bytes());
  }
}

TEST_F(image_hostile, contents_of_another_digest) {
  forged f = forged::of(good_);
  // The two records agree with each other, but not with the bytes.
  f.table[first(f.table, chunk_kind::raw)].contents.bytes[5] ^= std::byte{1};
  for (auto &r : f.table) {
    if (r.kind == chunk_kind::same) r.contents = f.table[r.where].contents;
  }
  put_file(path("b.smi"), f.bytes());
  EXPECT_FALSE(reader::open(path("b.smi"))->verify());
  f = forged::of(good_);
  f.table[first(f.table, chunk_kind::raw)].stored_bytes.bytes[5] ^= std::byte{1};
  found_by_reading("stored bytes", f.bytes());
}

TEST_F(image_hostile, children) {
  write_options options = small();
  options.parent = *reader::open(path("a.smi"));
  put("child.smi", changed(sample_, 3), options);
  const forged good = forged::of(bytes_of_file(path("child.smi")));
  const std::size_t n = first(good.table, chunk_kind::parent);
  forged f = good;
  f.table[n].where = 1'000'000;
  refused("no such record", f.bytes(), part::chunk_table);
  f = good;
  f.table[n].where = UINT64_MAX;
  refused("no such record", f.bytes(), part::chunk_table);
  f = good;
  f.table[n].contents.bytes[0] ^= std::byte{1};
  refused("another digest", f.bytes(), part::chunk_table);
  f = good;
  f.table[n].where = good.table.size() - 1 == n ? 0 : good.table.size() - 1;
  refused("another chunk", f.bytes(), part::chunk_table);
  f = good;
  refused("another root", f.bytes([](superblock &s) { s.parent_root.bytes[1] ^= std::byte{1}; }),
          part::parent);
  f = good;
  put_file(path("b.smi"), f.bytes([](superblock &s) { s.parent.bytes[1] ^= std::byte{1}; }));
  const auto lost = reader::open(path("b.smi"));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, std::errc::no_such_file_or_directory);
}

TEST_F(image_hostile, a_new_root_has_no_signature) {
  write_options options = small();
  options.sign_with.emplace();
  put("signed.smi", sample_, options);
  auto b = bytes_of_file(path("signed.smi"));
  b[112] ^= std::byte{1};  // the time
  forged::reseal(b);
  refused("a forged time", b, part::signature);
}

// Who can write the file, and does not know the key, changes nothing in the superblock.
TEST_F(image_hostile, superblocks_of_encrypted_images_are_authentic) {
  write_options options = small();
  options.key = make_secret_key().value();
  put("secret.smi", sample_, options);
  open_options open;
  open.key = options.key;
  auto good = bytes_of_file(path("secret.smi"));
  good.resize(block_bytes);
  const auto with = [&](std::size_t at, std::byte change) {
    auto b = good;
    b[at] ^= change;
    forged::reseal(b);
    std::fstream(path("secret.smi")).write(reinterpret_cast<const char *>(b.data()), block_bytes);
    return reader::open(path("secret.smi"), open);
  };
  ASSERT_TRUE(with(0, {})) << with(0, {}).error().message();
  for (std::size_t at = 0; at < 4048; at += at < 312 || at >= 4032 ? 1 : 31) {  // unused between
    EXPECT_FALSE(with(at, std::byte{1})) << "byte " << at;
  }
  const auto forged_time = with(112, std::byte{1});
  ASSERT_FALSE(forged_time);
  EXPECT_TRUE(forged_time.error().is(errc::corrupt)) << forged_time.error().message();
  EXPECT_EQ(forged_time.error().detail().where, "superblock at 4032");
}

// Each record costs 64 bytes of file, and must not cost a digest of 64 MiB.
TEST_F(image_hostile, a_small_file_of_many_zeros_is_opened_at_once) {
  sample many;
  many.what.tags = {"t"};
  many.what.access_lists = {{}};
  std::uint64_t at = 1ull << 32;
  for (std::uint32_t i = 0; i < 1000; ++i) {  // of two sizes in turn: no digest serves the next
    const std::uint64_t bytes = max_chunk_bytes - i % 2 * block_bytes;
    many.what.pages.push_back({bytes, on_device(0), handle_type::none, false});
    many.what.places.push_back({at, i, 0});
    at += max_chunk_bytes;
  }
  many.what.blocks = {{1ull << 32, at - (1ull << 32), 0, 0}};
  forged f = forged::of(good_);
  f.extents.clear();
  f.table = lay_out(many.what.page_bytes(), max_chunk_bytes);
  f.set_manifest(many.what);
  std::uint64_t contents = 0;
  for (const std::uint64_t page : many.what.page_bytes()) contents += page;
  put_file(path("b.smi"), f.bytes([&](superblock &s) {
    s.chunk_bytes = max_chunk_bytes;
    s.contents_bytes = contents;
  }));
  const auto r = reader::open(path("b.smi"));
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_TRUE(r->verify());
}

TEST_F(image_hostile, limits_count_the_parents) {
  put("0.smi", sample_);
  std::uint64_t metadata = 0;
  for (int i = 0; i < 3; ++i) {
    const auto r = reader::open(path(std::to_string(i) + ".smi"));
    ASSERT_TRUE(r) << r.error().message();
    metadata += r->superblock().chunk_table.bytes + r->superblock().manifest.bytes;
    if (i == 2) break;
    write_options options = small();
    options.parent = *r;
    put(std::to_string(i + 1) + ".smi", changed(sample_, static_cast<unsigned>(i)), options);
  }
  open_options options;
  options.max_metadata_bytes = metadata;
  const auto whole = reader::open(path("2.smi"), options);
  EXPECT_TRUE(whole) << whole.error().message();
  --options.max_metadata_bytes;
  const auto r = reader::open(path("2.smi"), options);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::invalid_argument)) << r.error().message();
  EXPECT_NE(r.error().message().find(std::to_string(metadata)), std::string::npos)
      << r.error().message();
}

TEST_F(image_hostile, opening_can_be_cancelled_between_any_two_reads) {
  class stops_at final : public checkpoint::file_system {
   public:
    stops_at(int reads, std::stop_source &stop) : left_(reads), stop_(stop) {}
    long read_at(int fd, void *to, std::size_t bytes, std::uint64_t offset) override {
      if (left_-- == 0) stop_.request_stop();
      return checkpoint::file_system::read_at(fd, to, bytes, offset);
    }

   private:
    int left_;
    std::stop_source &stop_;
  };
  write_options child = small();
  child.parent = *reader::open(path("a.smi"));
  put("child.smi", changed(sample_, 3), child);
  int cancelled = 0;
  for (int reads = 0;; ++reads) {
    std::stop_source stop;
    stops_at calls(reads, stop);
    open_options options;
    options.files = &calls;
    options.cancel = stop.get_token();
    const auto r = reader::open(path("child.smi"), options);
    if (!stop.stop_requested()) {
      EXPECT_TRUE(r) << r.error().message();
      break;
    }
    if (r) continue;  // after the last part was read
    ++cancelled;
    EXPECT_TRUE(r.error().is(errc::operation_canceled)) << r.error().message();
  }
  EXPECT_GE(cancelled, 6) << "superblock, table and manifest, of the image and of its parent";
}

TEST_F(image_hostile, limits_of_the_caller) {
  open_options options;
  options.max_contents_bytes = sample_.contents.size() - 1;
  auto r = reader::open(path("a.smi"), options);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::invalid_argument));
  options.max_contents_bytes = sample_.contents.size();
  EXPECT_TRUE(reader::open(path("a.smi"), options));
  options.max_metadata_bytes = 100;
  r = reader::open(path("a.smi"), options);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::invalid_argument));
  EXPECT_FALSE(reader::open(path("a.smi"))->read(sample_.contents.size(), {good_.data(), 1}));
  EXPECT_FALSE(reader::open(path("a.smi"))->read(UINT64_MAX, {good_.data(), 2}));
  EXPECT_FALSE(reader::open(path("a.smi"))->read_chunk(1'000'000, {good_.data(), 4096}));
}

}  // namespace
}  // namespace stillmap::image
