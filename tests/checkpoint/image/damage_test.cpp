// Accidental damage is detected: every flipped bit of the metadata, and
// random bits of the contents.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <stdexcept>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/checkpoint/image/parts.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

class image_damage : public image_test {
 protected:
  void open_file(const std::string &name) {
    fd_ = ::open(path(name).c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
    bytes_ = bytes_of_file(path(name));
    name_ = name;
    options_.direct_io = false;
  }
  void TearDown() override {
    if (fd_ >= 0) ::close(fd_);
  }

  bool put_byte(std::size_t at, std::byte b) {
    return ::pwrite(fd_, &b, 1, static_cast<off_t>(at)) == 1;
  }
  // Flips one bit, checks that the damage is detected, and flips it back.
  bool seen(std::size_t at, unsigned bit, bool by_opening) {
    EXPECT_TRUE(put_byte(at, bytes_[at] ^ static_cast<std::byte>(1u << bit)));
    const auto r = reader::open(path(name_), options_);
    bool found = !r;
    if (r && !by_opening) {
      verify_options v;
      v.threads = 1;
      const auto ok = r->verify(v);
      found = !ok;
      if (!ok) {
        EXPECT_TRUE(ok.error().is(errc::corrupt)) << ok.error().message();
      }
    }
    if (!r) {
      EXPECT_FALSE(r.error().message().empty());
    }
    EXPECT_TRUE(put_byte(at, bytes_[at]));
    return found;
  }
  // Flips every bit of a range; returns the number of bits.
  std::size_t all_bits(std::size_t from, std::size_t to, std::size_t step = 1) {
    std::size_t tried = 0, missed = 0;
    for (std::size_t at = from; at < to; at += step) {
      for (unsigned bit = 0; bit < 8; ++bit, ++tried) {
        if (!seen(at, bit, true) && ++missed < 5) ADD_FAILURE() << "byte " << at << " bit " << bit;
      }
    }
    EXPECT_EQ(missed, 0u);
    return tried;
  }

  // Flips a bit of the first stored chunk; returns the chunk's number.
  std::size_t damage_a_chunk(const std::string &name) {
    const auto r = reader::open(path(name));
    if (!r) throw std::runtime_error(r.error().message());
    const auto chunks = r->chunks();
    const auto stored = std::find_if(chunks.begin(), chunks.end(),
                                     [](const chunk_record &c) { return c.is_stored(); });
    auto bytes = bytes_of_file(path(name));
    bytes.at(stored->where) ^= std::byte{1};
    put_file(path(name), bytes);
    return static_cast<std::size_t>(stored - chunks.begin());
  }

  int fd_ = -1;
  std::vector<std::byte> bytes_;
  std::string name_;
  open_options options_;
};

TEST_F(image_damage, every_bit_of_the_metadata) {
  const sample s = make_sample({7, 3, 20});
  put("a.smi", s);
  open_file("a.smi");
  const auto r = reader::open(path("a.smi"));
  ASSERT_TRUE(r);
  std::size_t tried = all_bits(0, block_bytes);
  tried +=
      all_bits(r->superblock().chunk_table.offset, bytes_.size());  // with what lies behind each
  EXPECT_EQ(tried, 3 * block_bytes * 8);
  expect_holds("a.smi", s);  // all is as it was
}

TEST_F(image_damage, every_bit_of_seals_and_signature) {
  const sample s = make_sample({7, 3, 20});
  write_options options = small();
  options.sign_with.emplace().bytes.fill(std::byte{1});
  options_.key = options.key.emplace();
  put("a.smi", s, options);
  open_file("a.smi");
  const auto r = reader::open(path("a.smi"), options_);
  ASSERT_TRUE(r) << r.error().message();
  const superblock &h = r->superblock();
  all_bits(h.seals.offset, h.seals.end() + 64);
  all_bits(h.signature.offset, h.signature.end() + 64);
  all_bits(h.signature.end() + 64, bytes_.size(), 37);
  all_bits(0, block_bytes, 11);
  all_bits(h.chunk_table.offset, h.seals.offset, 11);
}

TEST_F(image_damage, bits_of_the_contents_and_of_what_lies_between) {
  std::mt19937_64 random(3);
  for (const codec c : {codec::none, codec::lz4, codec::zstd}) {
    for (const bool keys : {false, true}) {
      const sample s = make_sample({21, 14, 40});
      write_options options = small();
      options.compress = c;
      options.replace = true;
      options_.key.reset();
      if (keys) {
        options_.key = options.key.emplace();
        options.sign_with.emplace();
      }
      put("a.smi", s, options);
      open_file("a.smi");
      const auto r = reader::open(path("a.smi"), options_);
      ASSERT_TRUE(r) << r.error().message();
      const auto look = [&](std::size_t at, unsigned bit) {
        EXPECT_TRUE(seen(at, bit, false)) << "byte " << at << " bit " << bit;
      };
      for (const chunk_record &k : r->chunks()) {
        if (!k.is_stored()) continue;
        look(k.where, 0);
        look(k.extent().end() - 1, 7);
        look(k.where + random() % k.stored, static_cast<unsigned>(random() % 8));
        if (const std::uint64_t gap = to_block(k.extent().end()) - k.extent().end(); gap != 0) {
          look(k.extent().end(), 0);
          look(k.extent().end() + random() % gap, static_cast<unsigned>(random() % 8));
        }
      }
      const std::size_t extents = r->superblock().chunk_table.offset - block_bytes;
      for (int i = 0; i < 60; ++i) {
        look(block_bytes + random() % extents, static_cast<unsigned>(random() % 8));
      }
      ::close(fd_);
      fd_ = -1;
    }
  }
}

// Set STILLMAP_FLIPS=1000000 for a long run.
TEST_F(image_damage, random_bits_of_the_data) {
  const char *const asked = std::getenv("STILLMAP_FLIPS");
  const std::size_t flips = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 12'000;
  std::mt19937_64 random(11);
  std::size_t tried = 0, missed = 0;
  const auto start = std::chrono::steady_clock::now();
  for (unsigned image = 0; image < 6; ++image) {
    const sample s = make_sample({image, 4 + image % 3, 10});
    write_options options = small();
    options.compress = static_cast<codec>(image % 3);
    options.replace = true;
    options_.key.reset();
    if (image >= 3) options_.key = options.key.emplace();
    put("a.smi", s, options);
    open_file("a.smi");
    const auto r = reader::open(path("a.smi"), options_);
    ASSERT_TRUE(r) << r.error().message();
    // A uniformly chosen byte of data.
    std::vector<std::size_t> bytes;
    for (const chunk_record &k : r->chunks()) {
      if (!k.is_stored()) continue;
      for (std::uint64_t at = k.where; at < k.extent().end(); ++at) bytes.push_back(at);
    }
    ASSERT_GT(bytes.size(), 10'000u);
    for (std::size_t i = 0; i < flips / 6 + (image < flips % 6 ? 1 : 0); ++i, ++tried) {
      const std::size_t at = bytes[random() % bytes.size()];
      const auto bit = static_cast<unsigned>(random() % 8);
      if (!seen(at, bit, false) && ++missed < 5) ADD_FAILURE() << "byte " << at << " bit " << bit;
    }
    expect_holds("a.smi", s, options_);
    ::close(fd_);
    fd_ = -1;
  }
  EXPECT_EQ(missed, 0u);
  EXPECT_EQ(tried, flips);
  std::printf(
      "note: %zu random bits of data flipped in 6 images, one at a time: %zu not seen; %.0f s\n",
      tried, missed,
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

TEST_F(image_damage, every_length_but_its_own) {
  const sample s = make_sample({2, 4, 20});
  put("a.smi", s);
  const auto bytes = bytes_of_file(path("a.smi"));
  for (std::size_t n = 0; n <= bytes.size() + 2 * block_bytes; n += block_bytes) {
    for (const long off : {-1l, 0l, 1l}) {
      const auto size = static_cast<long>(n) + off;
      if (size < 0 || size == static_cast<long>(bytes.size())) continue;
      auto other = bytes;
      other.resize(static_cast<std::size_t>(size));
      put_file(path("b.smi"), other);
      const auto r = reader::open(path("b.smi"));
      ASSERT_FALSE(r) << size;
      EXPECT_TRUE(r.error().is(errc::corrupt)) << r.error().message();
      EXPECT_NE(r.error().message().find("b.smi"), std::string::npos);
    }
  }
}

TEST_F(image_damage, swapped_and_old_blocks) {
  const sample s = make_sample({5, 12, 60});
  put("a.smi", s);
  const auto bytes = bytes_of_file(path("a.smi"));
  const auto r = reader::open(path("a.smi"));
  ASSERT_TRUE(r);
  std::vector<std::uint64_t> stored;
  for (const chunk_record &k : r->chunks()) {
    if (k.is_stored() && k.stored == min_chunk_bytes) stored.push_back(k.where);
  }
  ASSERT_GE(stored.size(), 2u);
  auto swapped = bytes;
  std::swap_ranges(swapped.begin() + static_cast<long>(stored[0]),
                   swapped.begin() + static_cast<long>(stored[0] + min_chunk_bytes),
                   swapped.begin() + static_cast<long>(stored[1]));
  put_file(path("b.smi"), swapped);
  auto b = reader::open(path("b.smi"));
  ASSERT_TRUE(b) << b.error().message();
  auto v = b->verify();
  ASSERT_FALSE(v);
  EXPECT_TRUE(v.error().detail().where.starts_with(part::extents));
  // A lost write: a block of zeros.
  auto lost = bytes;
  std::fill_n(lost.begin() + static_cast<long>(stored[0]), block_bytes, std::byte{});
  put_file(path("b.smi"), lost);
  b = reader::open(path("b.smi"));
  ASSERT_TRUE(b);
  v = b->verify();
  ASSERT_FALSE(v);
  EXPECT_EQ(v.error().detail().where, checkpoint::position(part::extents, stored[0]));
  // A failed read leaves zeros, not unchecked bytes.
  std::vector<std::byte> to(s.contents.size(), std::byte{0x77});
  ASSERT_FALSE(b->read(0, to));
  EXPECT_TRUE(all_zero(to));
}

TEST_F(image_damage, a_chunk_that_fails_its_check_is_read_as_zeros) {
  for (const codec c : {codec::none, codec::zstd}) {
    write_options options = small();
    options.compress = c;
    options.replace = true;
    put("a.smi", make_sample({5, 12, 60}), options);
    const std::size_t damaged = damage_a_chunk("a.smi");
    const auto r = reader::open(path("a.smi"));
    ASSERT_TRUE(r) << r.error().message();
    std::vector<std::byte> to(r->chunks()[damaged].bytes, std::byte{0x77});
    const auto read = r->read_chunk(damaged, to);
    ASSERT_FALSE(read);
    EXPECT_TRUE(read.error().is(errc::corrupt)) << read.error().message();
    EXPECT_TRUE(all_zero(to));
  }
}

TEST_F(image_damage, of_a_parent_is_found_unless_parents_are_left_out) {
  const sample s = make_sample({5, 12, 60});
  put("a.smi", s);
  write_options options = small();
  options.parent = *reader::open(path("a.smi"));
  put("b.smi", changed(s, 3), options);
  damage_a_chunk("a.smi");
  const auto r = reader::open(path("b.smi"));
  ASSERT_TRUE(r) << r.error().message();
  const auto chain = r->verify();
  ASSERT_FALSE(chain);
  EXPECT_TRUE(chain.error().is(errc::corrupt)) << chain.error().message();
  EXPECT_EQ(chain.error().detail().subject, path("a.smi"));
  verify_options only_this;
  only_this.parents = false;
  EXPECT_TRUE(r->verify(only_this));
}

TEST_F(image_damage, other_files) {
  put_file(path("text.smi"), std::vector<std::byte>(9000, std::byte{'x'}));
  const auto text = reader::open(path("text.smi"));
  ASSERT_FALSE(text);
  EXPECT_NE(text.error().message().find("not an image"), std::string::npos)
      << text.error().message();
  put_file(path("zero.smi"), std::vector<std::byte>(8192));
  EXPECT_FALSE(reader::open(path("zero.smi")));
  std::filesystem::create_directory(path("folder.smi"));
  EXPECT_FALSE(reader::open(path("folder.smi")));
  ASSERT_EQ(::mkfifo(path("pipe.smi").c_str(), 0600), 0);
  const auto pipe = reader::open(path("pipe.smi"));  // and does not wait for a writer
  ASSERT_FALSE(pipe);
  EXPECT_TRUE(pipe.error().is(errc::not_supported)) << pipe.error().message();
  const auto none = reader::open(path("none.smi"));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, std::errc::no_such_file_or_directory);
}

}  // namespace
}  // namespace stillmap::image
