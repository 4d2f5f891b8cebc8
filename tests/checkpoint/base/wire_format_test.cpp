// Fields of messages as bytes: exactly which, there and back, and what a reader refuses.
#include "stillmap/checkpoint/base/wire_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace stillmap::checkpoint {
namespace {

using namespace std::chrono_literals;
using seconds = std::chrono::duration<double>;

enum class colour : std::uint32_t { none, red, green, blue };

std::string hex(const std::vector<std::byte> &bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    constexpr const char *digits = "0123456789abcdef";
    out += digits[std::to_integer<unsigned>(b) >> 4];
    out += digits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}
template <class... Fields>
std::vector<std::byte> written(const Fields &...fields) {
  wire_writer w;
  w(fields...);
  return w.take();
}
// Whether the bytes are read as the fields, to the last.
template <class... Fields>
bool reads(const std::vector<std::byte> &bytes, Fields &&...fields) {
  wire_reader r(bytes);
  r(fields...);
  EXPECT_TRUE(r.good() || !r.done());
  return r.done();
}

TEST(wire_format, each_kind_of_field_has_its_bytes) {
  EXPECT_EQ(hex(written(std::uint8_t{0xab}, std::uint16_t{0x1234})), "ab3412");
  EXPECT_EQ(hex(written(std::uint32_t{0xdeadbeef}, std::int32_t{-2})), "efbeaddefeffffff");
  EXPECT_EQ(hex(written(std::uint64_t{0x0123456789abcdef})), "efcdab8967452301");
  EXPECT_EQ(hex(written(true, false)), "0100000000000000");
  colour c = colour::green;
  std::optional<colour> none;
  EXPECT_EQ(hex(written(up_to(c, colour::blue), up_to(none, colour::blue))), "02000000ffffffff");
  EXPECT_EQ(hex(written(std::string("abc"), std::string())), "0300000061626300000000");
  EXPECT_EQ(hex(written(std::array<unsigned char, 2>{7, 8})), "0708");
  EXPECT_EQ(hex(written(device_address(0x10), 258ms)), "100000000000000002010000");
}

TEST(wire_format, durations_and_rates_are_finite_integers) {
  EXPECT_EQ(hex(written(seconds(1.5e-9))), "0100000000000000");
  EXPECT_EQ(hex(written(seconds(1))), "00ca9a3b00000000");
  EXPECT_EQ(written(seconds(1e30)), written(seconds(1e9)));
  EXPECT_EQ(hex(written(1.0, 2.9)), "01000000000000000200000000000000");
  EXPECT_EQ(written(1e30), written(1e18));
  for (const double nothing : {0.0, -1.0, std::nan(""), -HUGE_VAL}) {
    EXPECT_EQ(hex(written(nothing)), "0000000000000000") << nothing;
    EXPECT_EQ(hex(written(seconds(nothing))), "0000000000000000") << nothing;
  }
  seconds t(0);
  double rate = 0;
  EXPECT_TRUE(reads(written(seconds(2.5), 1e6), t, rate));
  EXPECT_EQ(t, seconds(2.5));
  EXPECT_EQ(rate, 1e6);
}

TEST(wire_format, what_is_written_is_read) {
  colour c = colour::red;
  std::optional<colour> some = colour::blue, none;
  const auto bytes =
      written(std::int16_t{-7}, true, up_to(c, colour::blue), up_to(some, colour::blue),
              up_to(none, colour::blue), std::string("tag"), device_address(9), 40ms);
  std::int16_t n = 0;
  bool flag = false;
  colour c2{};
  std::optional<colour> some2, none2;
  std::string text;
  device_address at;
  std::chrono::milliseconds t{};
  ASSERT_TRUE(reads(bytes, n, flag, up_to(c2, colour::blue), up_to(some2, colour::blue),
                    up_to(none2, colour::blue), text, at, t));
  EXPECT_EQ(n, -7);
  EXPECT_TRUE(flag);
  EXPECT_EQ(c2, c);
  EXPECT_EQ(some2, some);
  EXPECT_EQ(none2, std::nullopt);
  EXPECT_EQ(text, "tag");
  EXPECT_EQ(at, device_address(9));
  EXPECT_EQ(t, 40ms);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    const std::vector<std::byte> shorter(bytes.begin(),
                                         bytes.begin() + static_cast<std::ptrdiff_t>(cut));
    EXPECT_FALSE(reads(shorter, n, flag, up_to(c2, colour::blue), up_to(some2, colour::blue),
                       up_to(none2, colour::blue), text, at, t))
        << cut;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(reads(longer, n, flag, up_to(c2, colour::blue), up_to(some2, colour::blue),
                     up_to(none2, colour::blue), text, at, t));
}

TEST(wire_format, values_out_of_range_are_refused) {
  bool flag = false;
  EXPECT_TRUE(reads(written(std::uint32_t{1}), flag));
  EXPECT_FALSE(reads(written(std::uint32_t{2}), flag));
  colour c = colour::none;
  EXPECT_TRUE(reads(written(std::uint32_t{2}), up_to(c, colour::green, colour::red)));
  EXPECT_EQ(c, colour::green);
  EXPECT_TRUE(reads(written(std::uint32_t{1}), up_to(c, colour::green, colour::red)));
  EXPECT_FALSE(reads(written(std::uint32_t{0}), up_to(c, colour::green, colour::red)));
  EXPECT_FALSE(reads(written(std::uint32_t{3}), up_to(c, colour::green, colour::red)));
  EXPECT_EQ(c, colour::red) << "a refused value is not taken";
  EXPECT_FALSE(reads(written(UINT32_MAX), up_to(c, colour::green))) << "it is not optional";
}

TEST(wire_format, texts_have_a_longest_length) {
  std::string text;
  EXPECT_TRUE(reads(written(std::string(wire_reader::longest_text, 'a')), text));
  EXPECT_EQ(text.size(), wire_reader::longest_text);
  EXPECT_FALSE(reads(written(std::string(wire_reader::longest_text + 1, 'a')), text));
  EXPECT_TRUE(text.empty());
  wire_writer w(4);
  w(std::string("abcd"), std::string("abcde"));
  EXPECT_EQ(hex(w.take()), "04000000616263640400000061626364");
}

// A length that cannot be true allocates nothing.
TEST(wire_format, lists_are_as_long_as_what_follows) {
  const std::vector<std::uint16_t> list{1, 2, 3};
  wire_writer w;
  w.elements(list, w.count(list, 2), [&](std::uint16_t n) { w(n); });
  const auto bytes = w.take();
  EXPECT_EQ(hex(bytes), "03000000010002000300");
  const auto length = [&](std::size_t element_bytes) {
    wire_reader r(bytes);
    std::vector<std::uint16_t> back;
    const std::size_t n = r.count(back, element_bytes);
    r.elements(back, n, [&](std::uint16_t &e) { r(e); });
    EXPECT_EQ(r.good(), back == list);
    return n;
  };
  EXPECT_EQ(length(2), 3u);
  EXPECT_EQ(length(1), 3u);
  EXPECT_EQ(length(3), 0u);
  const auto too_short = written(std::uint32_t{2}, std::uint32_t{9});
  wire_reader r(too_short);
  std::vector<std::uint32_t> back;
  EXPECT_EQ(r.count(back, 4), 0u);
  EXPECT_FALSE(r.good());
}

TEST(wire_format, after_a_failure_nothing_is_good) {
  const auto bytes = written(std::uint32_t{7}, std::uint64_t{8});
  wire_reader r(bytes);
  r.check(false);
  std::array<std::byte, 4> into{};
  r.bytes(into);
  EXPECT_EQ(into, (std::array<std::byte, 4>{}));
  EXPECT_EQ(r.read<std::uint32_t>(), 0u);
  EXPECT_FALSE(r.good());
  EXPECT_FALSE(r.done());
}

}  // namespace
}  // namespace stillmap::checkpoint
