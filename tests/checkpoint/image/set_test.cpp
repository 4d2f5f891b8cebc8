// Reading sets of images.
#include <filesystem>

#include "stillmap/checkpoint/image/image_set.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

class image_sets : public image_test {
 protected:
  image_set put_set(std::uint32_t n) {
    image_set s;
    s.set = make_id().value();
    for (std::uint32_t i = 0; i < n; ++i) {
      write_options options = small();
      options.set = s.set;
      options.set_images = n;
      options.set_index = i;
      const written w = put(name_in_set(i, s.set), make_sample({i, 2, 10}), options);
      s.images.push_back({w.image, w.file_bytes, w.root});
    }
    return s;
  }
};

TEST_F(image_sets, round_trip) {
  const image_set s = put_set(3);
  EXPECT_EQ(read_set(folder()).error().code, std::errc::no_such_file_or_directory);
  ASSERT_TRUE(write_set(folder(), s));
  EXPECT_EQ(read_set(folder()).value(), s);
  const auto images = open_set(folder());
  ASSERT_TRUE(images) << images.error().message();
  ASSERT_EQ(images->size(), 3u);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*images)[i].manifest(), make_sample({i, 2, 10}).what);
  }
  const auto twice = write_set(folder(), s);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, std::errc::file_exists);
  EXPECT_TRUE(write_set(folder(), s, {.replace = true}));
  EXPECT_FALSE(write_set(folder(), {}, {.replace = true}));
  EXPECT_EQ(names_in(folder()),
            (std::vector<std::string>{name_in_set(0, s.set), name_in_set(1, s.set),
                                      name_in_set(2, s.set), "set"}));
}

TEST_F(image_sets, have_images_and_not_too_many) {
  image_set s;
  s.set = make_id().value();
  EXPECT_TRUE(write_set(folder(), s).error().is(errc::invalid_argument));
  s.images.resize(max_images_in_set + 1);
  EXPECT_TRUE(write_set(folder(), s).error().is(errc::invalid_argument));
  s.images.pop_back();
  ASSERT_TRUE(write_set(folder(), s));
  EXPECT_EQ(read_set(folder()).value(), s);
  s.set = {};
  EXPECT_TRUE(write_set(folder(), s, {.replace = true}).error().is(errc::invalid_argument));
}

TEST_F(image_sets, names_say_which_image_of_which_set) {
  const image_id id = make_id().value();
  for (const std::uint32_t i : {0u, 7u, 4095u}) {
    EXPECT_EQ(parse_name_in_set(name_in_set(i, id)), (set_position{i, id}));
  }
  const std::string good = name_in_set(12, id);
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_FALSE(parse_name_in_set(good.substr(0, n))) << n;
  for (const std::string &bad :
       {good + "x", "." + good, "device-012." + good.substr(10), "device--1." + good.substr(10),
        "device-12." + std::string(32, 'A') + ".smi", "device-12." + std::string(32, 'g') + ".smi",
        std::string("device-3.smi"), std::string("device-99999999999.") + good.substr(10)}) {
    EXPECT_FALSE(parse_name_in_set(bad)) << bad;
  }
}

TEST_F(image_sets, images_that_are_not_its_own) {
  const image_set s = put_set(2);
  ASSERT_TRUE(write_set(folder(), s));
  std::filesystem::rename(path(name_in_set(0, s.set)), path("x"));
  EXPECT_FALSE(open_set(folder()));
  std::filesystem::rename(path(name_in_set(1, s.set)), path(name_in_set(0, s.set)));
  std::filesystem::rename(path("x"), path(name_in_set(1, s.set)));
  const auto swapped = open_set(folder());
  ASSERT_FALSE(swapped);
  EXPECT_TRUE(swapped.error().is(errc::corrupt)) << swapped.error().message();
  // The set lists the images that are there, but their superblocks disagree.
  image_set other = s;
  std::swap(other.images[0], other.images[1]);
  ASSERT_TRUE(write_set(folder(), other, {.replace = true}));
  EXPECT_FALSE(open_set(folder()));
}

TEST_F(image_sets, every_bit_and_every_length) {
  const image_set s = put_set(2);
  ASSERT_TRUE(write_set(folder(), s));
  const auto good = bytes_of_file(path("set"));
  for (std::size_t i = 0; i < good.size() * 8; ++i) {
    auto b = good;
    b[i / 8] ^= static_cast<std::byte>(1u << i % 8);
    put_file(path("set"), b);
    ASSERT_FALSE(read_set(folder())) << i;
  }
  for (std::size_t n = 0; n < good.size() + 70; ++n) {
    if (n == good.size()) continue;
    auto b = good;
    b.resize(n);
    put_file(path("set"), b);
    const auto r = read_set(folder());
    ASSERT_FALSE(r) << n;
    EXPECT_TRUE(r.error().is(errc::corrupt)) << r.error().message();
  }
}

}  // namespace
}  // namespace stillmap::image
