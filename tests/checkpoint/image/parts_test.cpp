// Unit tests of digests, codecs, superblock, chunk table and keys.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "stillmap/checkpoint/image/chunk_table.h"
#include "stillmap/checkpoint/image/codec.h"
#include "stillmap/checkpoint/image/internal/seal.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

std::vector<std::byte> counting(std::size_t n) {
  std::vector<std::byte> b(n);
  for (std::size_t i = 0; i < n; ++i) b[i] = static_cast<std::byte>(i * 7 + i / 256);
  return b;
}

// Values computed by other implementations.
TEST(image_digest, known_values) {
  EXPECT_EQ(digest_of({}).text(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(sha256_of({}).text(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of(counting(4096)).text(), "08ef8fc6d37a71915c722d9ceb6f9064");
  digest_key key;
  std::ranges::copy(counting(key.bytes.size()), key.bytes.begin());
  EXPECT_EQ(digest_of_contents(key, counting(4096))->text(), "8a0c0d949f39f55dcda241e214b79319");
  EXPECT_EQ(digest_of_contents(key, counting(3 * 65536))->text(),
            "94480b6b4037e85a1e1db105775ce5f0");
}

TEST(image_digest, of_contents_depends_on_the_key_and_on_every_byte) {
  digest_key key = make_digest_key().value();
  auto b = counting(2 * block_bytes);
  const digest d = digest_of_contents(key, b).value();
  for (std::size_t i = 0; i < b.size(); i += 97) {
    b[i] ^= std::byte{1};
    EXPECT_NE(digest_of_contents(key, b).value(), d) << i;
    b[i] ^= std::byte{1};
  }
  EXPECT_EQ(digest_of_contents(key, b).value(), d);
  key.bytes[0] ^= std::byte{1};
  EXPECT_NE(digest_of_contents(key, b).value(), d);
}

TEST(image_digest, all_ways_lead_to_one_digest) {
  const digest_key key = make_digest_key().value(), other = make_digest_key().value();
  for (const std::size_t blocks : {1u, 2u, 4u, 5u, 63u, 200u}) {
    const auto b = counting(blocks * block_bytes);
    const both_digests both = digests_of(key, b).value();
    EXPECT_EQ(both.contents, digest_of_contents(key, b).value());
    EXPECT_EQ(both.stored, digest_of(b));
    const std::vector<std::byte> zeros(b.size());
    for (const digest_key &k : {key, key, other}) {  // the second time from memory
      EXPECT_EQ(digest_of_zeros(k, b.size()).value(), digest_of_contents(k, zeros).value());
    }
  }
}

TEST(image_digest, zeros) {
  EXPECT_TRUE(all_zero({}));
  for (const std::size_t n : {1u, 63u, 64u, 65u, 128u, 5000u}) {
    std::vector<std::byte> b(n);
    EXPECT_TRUE(all_zero(b));
    for (std::size_t i = 0; i < n; ++i) {
      b[i] = std::byte{0x80};
      EXPECT_FALSE(all_zero(b)) << i << " of " << n;
      b[i] = {};
    }
  }
}

TEST(image_superblock, survives_being_written) {
  superblock s;
  s.image.bytes[0] = s.set.bytes[1] = std::byte{1};
  s.time = 5;
  s.set_images = 3;
  s.set_index = 2;
  s.chunks = 2;
  s.contents_bytes = 8192;
  s.flags = flag_signed | flag_encrypted;
  s.chunk_table = {8192, 2 * record_bytes + key_bytes + tag_bytes};
  s.manifest = {12288, 5000};
  s.seals = {20480, 48};
  s.signature = {24576, 96};
  s.file_bytes = 28672;
  auto b = encode(s);
  const auto back = decode_superblock(b);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, s);
  const unsigned char magic[] = {0x89, 0x53, 0x4d, 0x49, 0x0d, 0x0a, 0x1a, 0x0a, 2, 0, 0, 0};
  EXPECT_EQ(std::memcmp(b.data(), magic, sizeof magic), 0);
  EXPECT_EQ(load<std::uint64_t>(b, 24), 28672u);  // as the specification has it
  EXPECT_EQ(load<std::uint32_t>(b, 128), 2u);
  EXPECT_EQ(load<std::uint64_t>(b, 200), 24576u);
}

TEST(image_superblock, has_at_most_a_seal_for_each_chunk) {
  superblock s;
  s.image.bytes[0] = s.set.bytes[1] = std::byte{1};
  s.chunks = 2;
  s.contents_bytes = 8192;
  s.flags = flag_signed | flag_encrypted;
  s.chunk_table = {8192, 2 * record_bytes + key_bytes + tag_bytes};
  s.manifest = {12288, 4096};
  s.signature = {20480, signature_bytes};
  s.file_bytes = 24576;
  const std::uint64_t most = 2 * seal_bytes + tag_bytes;
  s.seals = {16384, most};
  EXPECT_TRUE(decode_superblock(encode(s)));
  s.seals.bytes = most + 1;
  const auto more = decode_superblock(encode(s));
  ASSERT_FALSE(more);
  EXPECT_TRUE(more.error().is(errc::corrupt));
  EXPECT_EQ(more.error().detail().found, std::to_string(most + 1)) << more.error().message();
  EXPECT_EQ(more.error().detail().expected, std::to_string(most)) << more.error().message();
}

TEST(image_chunks, no_chunk_crosses_a_page) {
  const std::uint64_t pages[] = {4096, 65536, 65536 + 4096, 3 * 65536};
  const auto t = lay_out(pages, 65536);
  const std::uint32_t bytes[] = {4096, 65536, 65536, 4096, 65536, 65536, 65536};
  ASSERT_EQ(t.size(), std::size(bytes));
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < t.size(); ++i) {
    EXPECT_EQ(t[i].bytes, bytes[i]);
    EXPECT_EQ(t[i].at, at);
    at += bytes[i];
  }
}

// What lies behind the parent's table is no record of it, even if it would match.
TEST(image_chunks, references_lead_into_the_parents_table) {
  chunk_record record;
  record.bytes = min_chunk_bytes;
  record.contents = digest_of(counting(1));
  const std::vector<chunk_record> parent(3, record);
  chunk_record reference = record;
  reference.kind = chunk_kind::parent;
  for (const std::uint64_t where : {0, 1, 2, 3}) {
    reference.where = where;
    const status s =
        check_parent_references({&reference, 1}, superblock{}, std::span(parent).first(2));
    EXPECT_EQ(s.has_value(), where < 2) << where;
    EXPECT_TRUE(s || s.error().is(errc::corrupt));
  }
}

TEST(image_manifest, survives_being_written) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const manifest m = make_sample({seed, seed}).what;
    ASSERT_TRUE(check(m)) << check(m).error().message();
    const auto bytes = encode(m);
    ASSERT_TRUE(bytes);
    const auto back = decode_manifest(bytes->data(), bytes->size());
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(*back, m);
  }
}

// The position of an empty part depends on the other parts.
TEST(image_manifest, of_nothing_but_names) {
  for (std::size_t tags = 0; tags < 9; ++tags) {
    for (std::size_t letters = 0; letters < 9; ++letters) {
      manifest m;
      m.device.name.assign(letters, 'n');
      m.tags.assign(tags, std::string(letters, 't'));
      m.access_lists.resize(tags % 3);
      const auto bytes = encode(m);
      ASSERT_TRUE(bytes);
      const auto back = decode_manifest(bytes->data(), bytes->size());
      ASSERT_TRUE(back) << back.error().message();
      EXPECT_EQ(*back, m);
    }
  }
}

TEST(image_manifest, may_reach_the_limits_of_its_bytes) {
  manifest m;
  m.tags = {std::string(max_tag_bytes, 't')};
  m.access_lists = {std::vector<access_grant>(max_access_entries)};
  m.notes = {{"n", std::vector<std::byte>(max_note_bytes - 1)}};
  ASSERT_TRUE(check(m));
  const auto bytes = encode(m);
  ASSERT_TRUE(bytes) << bytes.error().message();
  const auto back = decode_manifest(bytes->data(), bytes->size());
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_TRUE(*back == m);
}

TEST(image_codec, there_and_back_or_not_worth_it) {
  compressor c;
  std::vector<std::byte> zeros(4096), space(4096);
  EXPECT_EQ(c.compress(codec::none, zeros, space), 0u);
  std::mt19937_64 random(1);
  for (const std::size_t size : {std::size_t{4096}, std::size_t{65536}, std::size_t{2} << 20}) {
    std::vector<std::byte> noise(size), text(size), back(size), room(size);
    for (auto &b : noise) b = static_cast<std::byte>(random());
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<std::byte>(i / 9 % 50);
    for (const auto &[options, kind] :
         {std::pair{codec::lz4, chunk_kind::lz4}, std::pair{codec::zstd, chunk_kind::zstd}}) {
      EXPECT_EQ(c.compress(options, noise, room), 0u);
      const std::size_t n = c.compress(options, text, room);
      ASSERT_GT(n, 0u);
      EXPECT_LE(n, worth_storing(size));
      ASSERT_TRUE(c.decompress(kind, bytes_view(room).first(n), back));
      EXPECT_EQ(back, text);
      EXPECT_FALSE(c.decompress(kind, bytes_view(room).first(n - 1), back));
      EXPECT_FALSE(c.decompress(kind, bytes_view(room).first(n), std::span(back).first(size - 1)));
      back.resize(size + 1);
      EXPECT_FALSE(c.decompress(kind, bytes_view(room).first(n), back));
      back.resize(size);
      const status none = c.decompress(kind, {}, back);
      ASSERT_FALSE(none);
      EXPECT_TRUE(none.error().is(errc::corrupt));
      EXPECT_EQ(none.error().detail().where, "extents at 0");
      EXPECT_EQ(none.error().detail().found, "none");
      EXPECT_EQ(none.error().detail().expected, std::to_string(size));
    }
  }
}

// The first key of RFC 8032; results of another implementation of HKDF and AES-256-GCM.
TEST(image_keys, known_values) {
  signing_key key;
  const unsigned char seed[] = {0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a,
                                0xf4, 0x92, 0xec, 0x2c, 0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32,
                                0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60};
  std::memcpy(key.bytes.data(), seed, sizeof seed);
  EXPECT_EQ(verifying_key_of(key)->text(),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  const sha256 root = sha256_of({});
  const auto s = sign(key, root);
  ASSERT_TRUE(s);
  EXPECT_TRUE(is_signature(*s, *verifying_key_of(key), root));
  EXPECT_FALSE(is_signature(*s, *verifying_key_of(key), sha256_of(counting(1))));
  EXPECT_FALSE(is_signature(signature{}, *verifying_key_of(key), root));
  EXPECT_FALSE(is_signature(*s, verifying_key{}, root));

  const auto c = cipher::create({}, {});
  ASSERT_TRUE(c);
  const auto plain = counting(20);
  std::vector<std::byte> sealed(36), back(20);
  ASSERT_TRUE(c->encrypt({3, 0}, plain, sealed));
  std::string hex;
  for (const std::byte b : sealed) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(b));
    hex += two;
  }
  EXPECT_EQ(hex, "68fb1296c8a293b3a2534478f2dd441dc62bd85eabb06fbf45a12ad524e6a7624a25deaa");
}

TEST(image_keys, each_part_is_bound_to_its_place) {
  image_id one, two;
  one.bytes[0] = std::byte{1};
  two.bytes[0] = std::byte{2};
  const auto c = cipher::create({}, one), d = cipher::create({}, two);
  const auto plain = counting(100);
  std::vector<std::byte> sealed(116), back(100);
  ASSERT_TRUE(c->encrypt({3, 0}, plain, sealed));
  ASSERT_TRUE(c->decrypt({3, 0}, sealed, back));
  EXPECT_EQ(back, plain);
  EXPECT_FALSE(c->decrypt({4, 0}, sealed, back));
  EXPECT_FALSE(c->decrypt({3, 1}, sealed, back));
  EXPECT_FALSE(d->decrypt({3, 0}, sealed, back));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    sealed[i] ^= std::byte{1};
    EXPECT_FALSE(c->decrypt({3, 0}, sealed, back)) << i;
    sealed[i] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace stillmap::image
