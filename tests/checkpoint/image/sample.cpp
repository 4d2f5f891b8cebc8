#include "tests/checkpoint/image/sample.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

namespace stillmap::image {
namespace {

enum class filling { random, zero, text, like_another, one_byte, count };

// `alike`: equal to an earlier piece of the same size, if there is one.
void fill(std::span<std::byte> piece, filling options, std::span<const std::byte> alike,
          std::mt19937_64 &random) {
  switch (options) {
    case filling::random:
      for (std::size_t i = 0; i < piece.size(); i += 8) {
        const std::uint64_t r = random();
        std::memcpy(&piece[i], &r, 8);
      }
      break;
    case filling::text:
      for (std::size_t i = 0; i < piece.size(); ++i) {
        piece[i] = static_cast<std::byte>('a' + i / 7 % 26 + random() % 2);
      }
      break;
    case filling::like_another:
      std::copy(alike.begin(), alike.end(), piece.begin());
      break;
    case filling::one_byte:  // all but zero
      piece[random() % piece.size()] = std::byte{1};
      break;
    default:
      break;
  }
}

}  // namespace

sample make_sample(const sample_shape &shape) {
  std::mt19937_64 random(shape.seed);
  sample s;
  s.what.device = {"a device", {}, 80'000'000'000, 2 << 20, 12'080};
  s.what.device.uuid[3] = std::byte{7};
  s.what.tags = {"weights", "cache \xc3\xa9", ""};
  s.what.access_lists = {{},
                         {{on_device(0), access_mode::read_write}},
                         {{on_device(0), access_mode::read}, {on_host_numa(1), access_mode::read}}};
  s.what.notes = {{"step", {std::byte{42}}}, {"empty", {}}};
  std::uint64_t at = 0x7f00'0000'0000;
  manifest::block open{at, 0, 1, 0};
  const auto close_block = [&] {
    if (open.bytes != 0) s.what.blocks.push_back(open);
    at += block_bytes * (1 + random() % 100);
    open = {at, 0, random() % 50, static_cast<std::uint32_t>(random() % s.what.tags.size())};
  };
  const auto place = [&](std::uint32_t page) {
    s.what.places.push_back({at, page, static_cast<std::uint32_t>(random() % 3)});
    at += s.what.pages[page].bytes;
    open.bytes += s.what.pages[page].bytes;
  };
  std::map<std::size_t, std::size_t> filled;  // where a piece of that size was filled
  for (std::size_t p = 0; p < shape.pages; ++p) {
    const std::uint64_t bytes = block_bytes * (1 + random() % shape.most_blocks_in_page);
    s.what.pages.push_back({bytes, random() % 4 == 0 ? on_host_numa(0) : on_device(0),
                            static_cast<handle_type>(random() % 3), random() % 2 == 0});
    place(static_cast<std::uint32_t>(p));
    if (shape.aliases && random() % 3 == 0) place(static_cast<std::uint32_t>(random() % (p + 1)));
    if (random() % 3 == 0) close_block();
    const std::size_t before = s.contents.size();
    s.contents.resize(before + bytes);
    // In chunks of 64 KiB, as in small().
    for (std::size_t in = 0; in < bytes; in += min_chunk_bytes) {
      const auto piece =
          std::span(s.contents)
              .subspan(before + in, std::min<std::size_t>(min_chunk_bytes, bytes - in));
      const auto options = static_cast<filling>(random() % static_cast<unsigned>(filling::count));
      const auto earlier = filled.find(piece.size());
      std::span<const std::byte> alike;
      if (earlier != filled.end()) {
        alike = std::span(s.contents).subspan(earlier->second, piece.size());
      }
      fill(piece, options, alike, random);
      if (options == filling::random || options == filling::text)
        filled[piece.size()] = before + in;
    }
  }
  close_block();
  return s;
}

sample changed(const sample &s, unsigned seed) {
  std::mt19937_64 random(seed);
  sample c = s;
  for (int i = 0; i < 3 && !c.contents.empty(); ++i) {
    c.contents[random() % c.contents.size()] ^= std::byte{0x10};
  }
  return c;
}

std::vector<std::byte> bytes_of_file(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto *begin = reinterpret_cast<const std::byte *>(text.data());
  return {begin, begin + text.size()};
}

void put_file(const std::string &path, const std::vector<std::byte> &bytes) {
  std::filesystem::remove(path);  // a file cut to nothing may be waited for, a new one is not
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char *>(bytes.data()), static_cast<long>(bytes.size()));
  ASSERT_TRUE(out.flush()) << path;
}

std::vector<std::string> names_in(const std::string &folder) {
  std::vector<std::string> names;
  for (const auto &e : std::filesystem::directory_iterator(folder)) {
    names.push_back(e.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

image_test::image_test() : folder_(::testing::TempDir() + "stillmap-image-XXXXXX") {
  if (::mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << "no folder " << folder_;
}

image_test::~image_test() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

write_options image_test::small() {
  write_options options;
  options.chunk_bytes = min_chunk_bytes;
  options.threads = 1;
  return options;
}

written image_test::put(const std::string &name, const sample &s, const write_options &options) {
  contents_in_memory from(s.contents);
  const auto w = write(path(name), s.what, from, options);
  EXPECT_TRUE(w) << w.error().message();
  return w.value_or(written{});
}

void image_test::expect_holds(const std::string &name, const sample &s,
                              const open_options &options) {
  const auto r = reader::open(path(name), options);
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_EQ(r->manifest(), s.what);
  ASSERT_EQ(r->superblock().contents_bytes, s.contents.size());
  const auto sound = r->verify();
  EXPECT_TRUE(sound) << sound.error().message();
  std::vector<std::byte> back(s.contents.size());
  const auto read = r->read(0, back);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(back == s.contents);
}

}  // namespace stillmap::image
