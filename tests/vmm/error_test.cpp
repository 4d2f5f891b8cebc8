#include "stillmap/vmm/error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stillmap/vmm/driver/cuda_errors.h"

namespace stillmap {
namespace {

error from_driver(int code) {
  return {std::error_code(code, cuda_category()), "cuMemMap", "", 0, 0};
}

TEST(error, says_what_was_refused_and_why_and_how_much) {
  const status s = make_error(errc::invalid_argument, "growable_buffer::resize",
                          "the size is over the reservation", 103079215104u, 68719476736u);
  EXPECT_EQ(s.error().message(),
            "growable_buffer::resize: the size is over the reservation (asked 96.0 GiB = "
            "103079215104, limit 64.0 GiB = 68719476736): invalid argument");
}

TEST(error, leaves_out_numbers_it_does_not_have) {
  EXPECT_EQ(make_error(errc::busy, "page_pool::trim", "pages are in use").value().message(),
            "page_pool::trim: pages are in use: busy");
  EXPECT_EQ(make_error(errc::busy, "page_pool::trim", "", 3).value().message(),
            "page_pool::trim (asked 3): busy");
  EXPECT_EQ(from_driver(700).message(),
            "cuMemMap: CUDA_ERROR_ILLEGAL_ADDRESS (a kernel touched memory it may not)");
  EXPECT_EQ(error{}.message(), std::error_code().message());
}

TEST(error, never_prints_a_unit_that_rounds_up_to_the_next) {
  const auto asked = [](std::uint64_t n) {
    return make_error(errc::busy, "f", "", n).value().message();
  };
  EXPECT_EQ(asked(1023), "f (asked 1023): busy");
  EXPECT_EQ(asked(1024), "f (asked 1.0 KiB = 1024): busy");
  EXPECT_EQ(asked(1024 * 1024 - 1), "f (asked 1.0 MiB = 1048575): busy");
  EXPECT_EQ(asked(UINT64_MAX), "f (asked 16.0 EiB = 18446744073709551615): busy");
}

TEST(error, a_drivers_code_keeps_its_number_and_has_a_condition) {
  const error e = from_driver(2);
  EXPECT_EQ(e.code.value(), 2);
  EXPECT_STREQ(e.code.category().name(), "cuda");
  EXPECT_TRUE(e.is(errc::out_of_memory));
  EXPECT_TRUE(e.code == errc::out_of_memory);
  EXPECT_FALSE(e.is(errc::address_space_exhausted));
  EXPECT_NE(e.code.message().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos);
}

TEST(error, conditions_of_the_codes_callers_act_on) {
  const auto all = [](errc c, std::vector<int> codes) {
    for (int code : codes) EXPECT_TRUE(from_driver(code).is(c)) << describe_cuda_error(code).name;
  };
  all(errc::out_of_memory, {2});
  all(errc::invalid_argument, {1, 101, 201, 400});
  all(errc::not_supported, {3, 34, 100, 500, 800, 801, 802, 803, 900, 906});
  all(errc::busy, {46, 600, 708, 712, 807, 919});
  all(errc::device_lost, {4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719});
}

TEST(error, a_code_that_says_nothing_has_no_condition) {
  for (int code : {0, 304, 999, 12345, -7}) {
    for (int c = 1; c <= static_cast<int>(errc::corrupt); ++c) {
      EXPECT_FALSE(from_driver(code).is(static_cast<errc>(c))) << code;
    }
  }
  EXPECT_EQ(from_driver(12345).code.message(),
            "CUDA_ERROR_UNRECOGNISED 12345 (a code this version does not know)");
}

TEST(error, conditions_of_our_own_are_themselves) {
  for (int c = 1; c <= static_cast<int>(errc::corrupt); ++c) {
    const std::error_code code = make_error_code(static_cast<errc>(c));
    EXPECT_TRUE(code == static_cast<errc>(c));
    EXPECT_EQ(code.message().find("unknown"), std::string::npos);
    EXPECT_STREQ(code.category().name(), "stillmap");
    // The number means something else in the other category.
    EXPECT_NE(code, std::error_code(c, cuda_category()));
  }
  EXPECT_NE(stillmap_category().message(99).find("unknown"), std::string::npos);
}

struct heard {
  std::vector<error> all;
  static void listen(const error &e, void *user) noexcept {
    static_cast<heard *>(user)->all.push_back(e);
  }
};

TEST(error, what_nobody_can_be_told_is_counted_and_handed_to_the_sink) {
  heard h;
  const std::uint64_t before = background_error_count();
  set_error_sink(&heard::listen, &h);
  report_background_error(from_driver(400));
  set_error_sink(nullptr, nullptr);
  report_background_error(from_driver(1));
  EXPECT_EQ(background_error_count() - before, 2u);
  ASSERT_EQ(h.all.size(), 1u);
  EXPECT_EQ(h.all[0].code.value(), 400);
}

TEST(error, a_driver_that_shuts_down_has_taken_everything_back) {
  heard h;
  const std::uint64_t before = background_error_count();
  set_error_sink(&heard::listen, &h);
  for (int code : {3, 4, 709}) {
    EXPECT_TRUE(driver_is_gone(from_driver(code)));
    report_background_error(from_driver(code));
  }
  set_error_sink(nullptr, nullptr);
  EXPECT_EQ(background_error_count(), before);
  EXPECT_TRUE(h.all.empty());
  // errc::invalid_argument is 3 too, and is none of a driver's business.
  EXPECT_FALSE(driver_is_gone(make_error(errc::invalid_argument, "f", "").value()));
  EXPECT_FALSE(driver_is_gone(from_driver(700)));
}

TEST(error, a_sink_may_replace_itself) {
  const error_sink once = [](const error &, void *) noexcept { set_error_sink(nullptr, nullptr); };
  set_error_sink(once, nullptr);
  const std::uint64_t before = background_error_count();
  report_background_error(from_driver(400));
  report_background_error(from_driver(400));
  EXPECT_EQ(background_error_count() - before, 2u);
}

}  // namespace
}  // namespace stillmap
