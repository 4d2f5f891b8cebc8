// Images are read as they were written: every kind of chunk, chains, encryption, signatures.
#include <algorithm>
#include <filesystem>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/parts.h"
#include "tests/checkpoint/image/sample.h"
#include "tests/support/colliding_chunks.h"

namespace stillmap::image {
namespace {

class image_round_trip : public image_test {};

secret_key a_secret(unsigned n) {
  secret_key k;
  k.bytes.fill(static_cast<std::byte>(n));
  return k;
}
signing_key a_signer(unsigned n) {
  signing_key k;
  k.bytes.fill(static_cast<std::byte>(n));
  return k;
}

TEST_F(image_round_trip, every_way_of_writing) {
  std::mt19937 random(11);
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const sample s = make_sample({seed, seed % 16, 1 + seed * 3 % 90});
    write_options options = small();
    options.compress = static_cast<codec>(seed % 3);
    options.threads = 1 + seed % 4;
    options.chunk_bytes = min_chunk_bytes << (seed % 4);
    options.direct_io = seed % 5 != 0;
    options.queue_depth = seed % 6;
    options.share = seed % 7 != 0;
    open_options open;
    open.direct_io = seed % 3 != 0;
    if (seed % 4 == 1) open.key = options.key = a_secret(seed);
    if (seed % 8 >= 5) {
      options.sign_with = a_signer(seed);
      open.signed_by = *verifying_key_of(*options.sign_with);
    }
    const written w = put("a.smi", s, options);
    EXPECT_EQ(w.file_bytes, std::filesystem::file_size(path("a.smi")));
    expect_holds("a.smi", s, open);
    const auto r = reader::open(path("a.smi"), open);
    ASSERT_TRUE(r);
    EXPECT_EQ(r->superblock().root, w.root);
    for (int i = 0; i < 20 && !s.contents.empty(); ++i) {  // pieces of any size, anywhere
      const std::size_t at = random() % s.contents.size();
      std::vector<std::byte> piece(random() %
                                   std::min<std::size_t>(s.contents.size() - at, 200'000));
      ASSERT_TRUE(r->read(at, piece));
      EXPECT_TRUE(
          std::equal(piece.begin(), piece.end(), s.contents.begin() + static_cast<long>(at)));
    }
    std::filesystem::remove(path("a.smi"));
  }
}

TEST_F(image_round_trip, each_kind_is_used) {
  sample s;
  s.what.tags = {"t"};
  s.what.access_lists = {{}};
  s.contents.resize(6 * min_chunk_bytes);
  s.what.pages = {{s.contents.size(), on_device(0), handle_type::none, false}};
  s.what.blocks = {{1 << 20, s.contents.size(), 0, 0}};
  s.what.places = {{1 << 20, 0, 0}};
  std::mt19937_64 random(5);
  const auto piece = [&](std::size_t i) {
    return std::span(s.contents).subspan(i * min_chunk_bytes, min_chunk_bytes);
  };
  for (auto &b : piece(1)) b = static_cast<std::byte>(random());
  for (auto &b : piece(2)) b = std::byte{5};
  std::copy(piece(1).begin(), piece(1).end(), piece(3).begin());
  // 60 KiB of noise: compression saves less than an eighth.
  for (auto &b : piece(4).first(60 << 10)) b = static_cast<std::byte>(random());
  for (const codec c : {codec::lz4, codec::zstd}) {
    write_options options = small();
    options.compress = c;
    options.replace = true;
    const written w = put("a.smi", s, options);
    const auto r = reader::open(path("a.smi"));
    ASSERT_TRUE(r) << r.error().message();
    const chunk_kind packed = c == codec::lz4 ? chunk_kind::lz4 : chunk_kind::zstd;
    const chunk_kind expected[] = {chunk_kind::zero, chunk_kind::raw, packed,
                                   chunk_kind::same, chunk_kind::raw, chunk_kind::zero};
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(r->chunks()[i].kind, expected[i]) << i;
    EXPECT_EQ(w.zero_chunks, 2u);
    EXPECT_EQ(w.same_chunks, 1u);
    EXPECT_EQ(w.compressed_chunks, 1u);
    expect_holds("a.smi", s);
  }
}

TEST_F(image_round_trip, nothing_at_all) {
  put("empty.smi", {});
  expect_holds("empty.smi", {});
  EXPECT_EQ(std::filesystem::file_size(path("empty.smi")), 3 * block_bytes);
}

TEST_F(image_round_trip, a_chain_and_what_is_left_of_it) {
  std::vector<sample> steps{make_sample({3, 10})};
  put("0.smi", steps[0]);
  std::uint64_t full = std::filesystem::file_size(path("0.smi"));
  for (unsigned i = 1; i < max_chain_length; ++i) {
    steps.push_back(changed(steps.back(), i));
    const auto parent = reader::open(path(std::to_string(i - 1) + ".smi"));
    ASSERT_TRUE(parent) << parent.error().message();
    write_options options = small();
    options.parent = *parent;
    options.chunk_bytes = 0;
    if (i % 3 == 0) options.compress = codec::lz4;
    if (i % 2 == 0) options.threads = 3;
    const written w = put(std::to_string(i) + ".smi", steps.back(), options);
    EXPECT_GT(w.parent_chunks, 0u);
    EXPECT_LT(w.file_bytes, full);
  }
  for (const unsigned i : {0u, 1u, 7u, 30u, max_chain_length - 1}) {
    expect_holds(std::to_string(i) + ".smi", steps[i]);
  }
  const auto last = reader::open(path(std::to_string(max_chain_length - 1) + ".smi"));
  ASSERT_TRUE(last) << last.error().message();
  EXPECT_EQ(last->chain(), max_chain_length);
  write_options more = small();
  more.parent = *last;
  contents_in_memory from(steps.back().contents);
  const auto too_long = write(path("over.smi"), steps.back().what, from, more);
  ASSERT_FALSE(too_long);
  EXPECT_TRUE(too_long.error().is(errc::invalid_argument));
  // A flattened image needs no parent, and takes none.
  const auto flat = flatten(*last, path("flat.smi"));
  ASSERT_TRUE(flat) << flat.error().message();
  const auto also = flatten(*last, path("also.smi"), more);
  ASSERT_TRUE(also) << also.error().message();
  for (unsigned i = 0; i < max_chain_length; ++i) {
    std::filesystem::remove(path(std::to_string(i) + ".smi"));
  }
  expect_holds("flat.smi", steps.back());
  expect_holds("also.smi", steps.back());
  EXPECT_EQ(reader::open(path("flat.smi"))->superblock().time, last->superblock().time);
  EXPECT_EQ(reader::open(path("flat.smi"))->superblock().chunk_bytes, small().chunk_bytes);
}

TEST_F(image_round_trip, pages_are_checked_before_anything_is_written) {
  for (const std::size_t page : {std::size_t{0}, std::size_t{1}}) {
    sample s = make_sample();
    s.what.pages[page].bytes += 1;
    contents_in_memory from(s.contents);
    const auto w = write(path("a.smi"), s.what, from, small());
    ASSERT_FALSE(w);
    EXPECT_NE(w.error().message().find("page " + std::to_string(page)), std::string::npos)
        << w.error().message();
    EXPECT_FALSE(std::filesystem::exists(path("a.smi")));
  }
}

TEST_F(image_round_trip, blocks_that_touch) {
  sample s = make_sample();
  ASSERT_GT(s.what.blocks.size(), 1u);
  s.what.blocks[0].bytes = s.what.blocks[1].begin - s.what.blocks[0].begin;
  put("a.smi", s);
  expect_holds("a.smi", s);
}

TEST_F(image_round_trip, parents_that_moved_are_named_or_not_found) {
  const sample s = make_sample(), t = changed(s, 4);
  put("a.smi", s);
  write_options options = small();
  options.parent = *reader::open(path("a.smi"));
  put("b.smi", t, options);
  std::filesystem::create_directory(path("elsewhere"));
  std::filesystem::rename(path("a.smi"), path("elsewhere/a.smi"));
  const auto lost = reader::open(path("b.smi"));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, std::errc::no_such_file_or_directory);
  EXPECT_TRUE(lost.error().detail().where.starts_with(part::parent));
  EXPECT_NE(lost.error().message().find(options.parent->superblock().image.text()),
            std::string::npos);
  open_options open;
  open.parents = {path("nowhere.smi"), path("b.smi"), path("elsewhere/a.smi")};
  expect_holds("b.smi", t, open);
}

// Whatever the order in which the file system lists them.
TEST_F(image_round_trip, of_two_copies_of_a_parent_the_first_by_name_is_taken) {
  class backwards final : public checkpoint::file_system {
    int names_in(int directory, std::vector<std::string> &names) override {
      const int r = checkpoint::file_system::names_in(directory, names);
      std::sort(names.rbegin(), names.rend());
      return r;
    }
  };
  const sample s = make_sample();
  put("a.smi", s);
  write_options options = small();
  options.parent = *reader::open(path("a.smi"));
  put("b.smi", changed(s, 4), options);
  std::filesystem::copy_file(path("a.smi"), path("c.smi"));
  backwards calls;
  open_options open;
  open.files = &calls;
  const auto r = reader::open(path("b.smi"), open);
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_EQ(r->parent()->path(), path("a.smi"));
}

TEST_F(image_round_trip, pages_that_grew_have_parents_for_their_old_chunks) {
  // Remembers which digests it was asked for.
  class asked final : public contents_source {
   public:
    asked(bytes_view contents, const digest_key &key) : contents_(contents), key_(key) {}
    result<bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) override {
      return contents_.subspan(offset, room.size());
    }
    std::optional<digest> digest_of(std::uint64_t offset, std::size_t bytes) override {
      digests.push_back(offset);
      return digest_of_contents(key_, contents_.subspan(offset, bytes)).value();
    }
    std::vector<std::uint64_t> digests;

   private:
    bytes_view contents_;
    digest_key key_;
  };
  // Two pages at the same addresses, whatever their sizes.
  const auto two_pages = [](std::size_t first, std::size_t second) {
    sample s;
    s.what.tags = {"t"};
    s.what.access_lists = {{}};
    s.what.pages = {{first, on_device(0), handle_type::none, false},
                    {second, on_device(0), handle_type::none, false}};
    s.what.blocks = {{1 << 20, 2 << 20, 0, 0}};
    s.what.places = {{1 << 20, 0, 0}, {2 << 20, 1, 0}};
    std::mt19937_64 random(5);
    s.contents.resize(first + second);
    for (auto &b : s.contents) b = static_cast<std::byte>(random());
    return s;
  };
  put("a.smi", two_pages(min_chunk_bytes, block_bytes));
  // The chunk behind the first page's only one is the second page's, of another size; behind that
  // there is none.
  const sample grown = two_pages(2 * min_chunk_bytes, 4 * min_chunk_bytes);
  write_options options = small();
  options.parent = *reader::open(path("a.smi"));
  asked from(grown.contents, options.parent->digest_key());
  const auto w = write(path("b.smi"), grown.what, from, options);
  ASSERT_TRUE(w) << w.error().message();
  EXPECT_EQ(w->parent_chunks, 1u);
  EXPECT_EQ(from.digests, std::vector<std::uint64_t>{0}) << "only of what the parent has";
  expect_holds("b.smi", grown);
}

sample pages_of(std::size_t pages, const std::vector<std::byte> &contents) {
  sample s;
  s.what.tags = {"t"};
  s.what.access_lists = {{}};
  s.what.blocks = {{1 << 20, pages << 20, 0, 0}};
  for (std::uint32_t i = 0; i < pages; ++i) {
    s.what.pages.push_back({contents.size() / pages, on_device(0), handle_type::none, false});
    s.what.places.push_back({(1ull + i) << 20, i, 0});
  }
  s.contents = contents;
  return s;
}

// A task's user may choose its contents, and must not be able to choose what an image holds.
TEST_F(image_round_trip, chunks_made_to_collide_are_both_stored) {
  const auto [a, b] = stillmap::testing::colliding_chunks(min_chunk_bytes);
  ASSERT_EQ(digest_of(a), digest_of(b));
  std::vector<std::byte> both = a;
  both.insert(both.end(), b.begin(), b.end());
  write_options signed_and_encrypted = small();
  signed_and_encrypted.key = make_secret_key().value();
  signed_and_encrypted.sign_with = make_signing_key().value();
  open_options open;
  open.key = signed_and_encrypted.key;
  const sample two = pages_of(2, both);
  put("a.smi", two, signed_and_encrypted);
  expect_holds("a.smi", two, open);
  // Changed from one to the other since the parent was written.
  put("b.smi", pages_of(1, a));
  write_options incremental = small();
  incremental.parent = *reader::open(path("b.smi"));
  put("c.smi", pages_of(1, b), incremental);
  expect_holds("c.smi", pages_of(1, b));
}

TEST_F(image_round_trip, an_image_does_not_replace_its_parent) {
  const sample s = make_sample();
  put("a.smi", s);
  write_options options = small();
  options.parent = *reader::open(path("a.smi"));
  options.replace = true;
  contents_in_memory from(s.contents);
  const auto w = write(path("a.smi"), s.what, from, options);
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::invalid_argument));
  expect_holds("a.smi", s);
}

TEST_F(image_round_trip, names) {
  const sample s = make_sample(), t = changed(s, 9);
  put("a.smi", s);
  contents_in_memory from(t.contents);
  auto w = write(path("a.smi"), t.what, from, small());
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, std::errc::file_exists);
  expect_holds("a.smi", s);
  write_options replace = small();
  replace.replace = true;
  put("a.smi", t, replace);
  expect_holds("a.smi", t);
  put("new.smi", s, replace);
  std::filesystem::create_directory(path("folder.smi"));
  w = write(path("folder.smi"), t.what, from, replace);
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, std::errc::file_exists);
  EXPECT_FALSE(write(path("nowhere/a.smi"), t.what, from, small()));
  EXPECT_FALSE(write(folder() + "/", t.what, from, small()));
  EXPECT_EQ(names_in(folder()), (std::vector<std::string>{"a.smi", "folder.smi", "new.smi"}));
}

TEST_F(image_round_trip, keys) {
  const sample s = make_sample();
  write_options options = small();
  options.key = a_secret(1);
  options.sign_with = a_signer(2);
  options.compress = codec::zstd;
  put("a.smi", s, options);
  // The file contains no plain text of the contents or the manifest.
  const auto bytes = bytes_of_file(path("a.smi"));
  const std::string_view text(reinterpret_cast<const char *>(bytes.data()), bytes.size());
  EXPECT_EQ(text.find("weights"), text.npos);
  EXPECT_EQ(text.find("aaaaaaa"), text.npos);

  open_options open;
  auto r = reader::open(path("a.smi"), open);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::invalid_argument)) << r.error().message();
  open.key = a_secret(3);
  r = reader::open(path("a.smi"), open);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::corrupt)) << r.error().message();
  open.key = a_secret(1);
  open.signed_by = *verifying_key_of(a_signer(3));
  r = reader::open(path("a.smi"), open);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().detail().where.starts_with(part::signature));
  open.signed_by = *verifying_key_of(a_signer(2));
  expect_holds("a.smi", s, open);
  EXPECT_EQ(reader::open(path("a.smi"), open)->signer(), open.signed_by);

  put("unsigned.smi", s);
  open.key.reset();
  r = reader::open(path("unsigned.smi"), open);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::corrupt));
}

TEST_F(image_round_trip, keys_of_a_chain) {
  const sample s = make_sample(), t = changed(s, 2);
  write_options options = small();
  open_options open;
  open.key = options.key = a_secret(1);
  put("a.smi", s, options);
  options.parent = *reader::open(path("a.smi"), open);
  options.sign_with = a_signer(2);
  put("b.smi", t, options);
  expect_holds("b.smi", t, open);
  // `signed_by` applies to parents too.
  open.signed_by = *verifying_key_of(a_signer(2));
  const auto r = reader::open(path("b.smi"), open);
  ASSERT_FALSE(r);
  EXPECT_TRUE(r.error().is(errc::corrupt));
  EXPECT_EQ(r.error().detail().subject, path("a.smi"));
  write_options again = small();
  again.key = options.key;
  again.sign_with = options.sign_with;
  again.replace = again.force = true;
  put("a.smi", s, again);
  options.parent = *reader::open(path("a.smi"), open);
  options.replace = true;
  put("b.smi", t, options);
  expect_holds("b.smi", t, open);
}

// Regression: a reader with a key accepted any image that was not encrypted, whose contents whoever
// can write the file chooses.
TEST_F(image_round_trip, with_a_key_only_encrypted_images_are_read) {
  const sample s = make_sample({6});
  put("plain.smi", s);
  open_options open;
  open.key = a_secret(1);
  const auto plain = reader::open(path("plain.smi"), open);
  ASSERT_FALSE(plain);
  EXPECT_TRUE(plain.error().is(errc::corrupt)) << plain.error().message();
  // Nor is one a part of a chain with the other kind.
  write_options options = small();
  options.key = a_secret(1);
  put("secret.smi", s, options);
  const auto secret = reader::open(path("secret.smi"), open);
  ASSERT_TRUE(secret) << secret.error().message();
  contents_in_memory from(s.contents);
  options.parent = *reader::open(path("plain.smi"));
  const auto on_plain = write(path("a.smi"), s.what, from, options);
  options.key.reset();
  options.parent = *secret;
  const auto on_secret = write(path("b.smi"), s.what, from, options);
  for (const auto *const w : {&on_plain, &on_secret}) {
    ASSERT_FALSE(*w);
    EXPECT_TRUE(w->error().is(errc::invalid_argument)) << w->error().message();
  }
}

TEST_F(image_round_trip, cancelling_leaves_nothing) {
  const sample s = make_sample();
  for (const write_phase when : {write_phase::contents, write_phase::verifying}) {
    for (const unsigned threads : {1u, 3u}) {
      write_options options = small();
      options.threads = threads;
      int calls = 0;
      std::stop_source cancel;
      options.on_progress = [&](const write_progress &p) {
        EXPECT_LE(p.bytes, p.total_bytes);
        if (p.phase == when && ++calls == 3) cancel.request_stop();
      };
      options.cancel = cancel.get_token();
      contents_in_memory from(s.contents);
      const auto w = write(path("a.smi"), s.what, from, options);
      ASSERT_FALSE(w);
      EXPECT_EQ(w.error().code, std::errc::operation_canceled);
      EXPECT_TRUE(names_in(folder()).empty());
    }
  }
  put("a.smi", s);
  verify_options verify;
  std::stop_source cancel;
  verify.on_progress = [&](const verify_progress &) { cancel.request_stop(); };
  verify.cancel = cancel.get_token();
  const auto v = reader::open(path("a.smi"))->verify(verify);
  ASSERT_FALSE(v);
  EXPECT_EQ(v.error().code, std::errc::operation_canceled);
}

TEST_F(image_round_trip, sources_that_fail) {
  class failing final : public contents_source {
   public:
    result<bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) override {
      if (offset >= 3 * min_chunk_bytes) {
        return make_error(errc::device_lost, "the device is gone");
      }
      std::fill(room.begin(), room.end(), std::byte{9});
      return bytes_view(room);
    }
  };
  const sample s = make_sample();
  failing f;
  const auto w = write(path("a.smi"), s.what, f, small());
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::device_lost));
  contents_in_memory less(bytes_view(s.contents).first(s.contents.size() - block_bytes));
  EXPECT_FALSE(write(path("a.smi"), s.what, less, small()));
  EXPECT_TRUE(names_in(folder()).empty());
}

TEST_F(image_round_trip, left_overs_of_the_dead_go_and_those_of_the_living_stay) {
  put_file(path(".a.smi.stillmap-abc012"), {});
  put_file(path(".a.smi.stillmap-abc01"), {});   // no name that a writer makes
  put_file(path(".b.smi.stillmap-abc012"), {});  // another image's
  const sample s = make_sample();
  bool looked = false;
  write_options options = small();
  options.on_progress = [&](const write_progress &) {
    if (!looked) {
      looked = true;
      write_options other = small();
      contents_in_memory same(s.contents);
      EXPECT_TRUE(write(path("a.smi"), s.what, same, other));  // meanwhile, the same name
    }
  };
  contents_in_memory from(s.contents);
  const auto w = write(path("a.smi"), s.what, from, options);
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, std::errc::file_exists);
  EXPECT_EQ(names_in(folder()),
            (std::vector<std::string>{".a.smi.stillmap-abc01", ".b.smi.stillmap-abc012", "a.smi"}));
  expect_holds("a.smi", s);
}

}  // namespace
}  // namespace stillmap::image
