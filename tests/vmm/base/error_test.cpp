#include "stillmap/vmm/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/base/operation.h"

namespace stillmap {
namespace {

error from_driver(int code) {
  return {std::error_code(code, cuda_category()), "cuMemMap"};
}

TEST(error, names_the_operation_the_reason_and_the_amounts) {
  const operation_scope scope("growable_buffer::resize");
  const status s = make_error(errc::invalid_argument, "the size exceeds the reservation",
                              103079215104u, 68719476736u, error_unit::bytes);
  EXPECT_EQ(s.error().message(),
            "growable_buffer::resize: the size exceeds the reservation (requested 96 GiB = "
            "103079215104 B, limit 64 GiB = 68719476736 B): invalid argument");
}

TEST(error, leaves_out_numbers_it_does_not_have) {
  EXPECT_EQ((error{make_error_code(errc::busy), "page_pool::trim", "pages are in use"}.message()),
            "page_pool::trim: pages are in use: busy");
  EXPECT_EQ((error{make_error_code(errc::busy), "page_pool::trim", "", 3}.message()),
            "page_pool::trim (requested 3): busy");
  EXPECT_EQ(from_driver(700).message(),
            "cuMemMap: CUDA_ERROR_ILLEGAL_ADDRESS (a kernel touched memory it may not)");
  EXPECT_EQ(error{}.message(), std::error_code().message());
}

TEST(error, prints_each_number_in_its_unit) {
  const auto message = [](std::uint64_t value, std::uint64_t limit, error_unit unit) {
    return error{make_error_code(errc::busy), "f", "", value, limit, unit}.message();
  };
  EXPECT_EQ(message(5000, 0, error_unit::milliseconds), "f (requested 5000 ms): busy");
  EXPECT_EQ(message(0x7f0000200000, 0, error_unit::address), "f (at 0x7f0000200000): busy");
  EXPECT_EQ(message(3, 1, error_unit::pages), "f (requested 3 pages, limit 1 page): busy");
  EXPECT_EQ(message(40, 8, error_unit::none), "f (requested 40, limit 8): busy");
  EXPECT_EQ(message(0, 8, error_unit::items), "f (requested 0, limit 8): busy");
}

TEST(error, never_prints_a_unit_that_rounds_up_to_the_next) {
  const auto requested = [](std::uint64_t n) {
    return error{make_error_code(errc::busy), "f", "", n, 0, error_unit::bytes}.message();
  };
  EXPECT_EQ(requested(1023), "f (requested 1023 B): busy");
  EXPECT_EQ(requested(1024), "f (requested 1 KiB = 1024 B): busy");
  EXPECT_EQ(requested(1024 * 1024 - 1), "f (requested 1 MiB = 1048575 B): busy");
  EXPECT_EQ(requested(UINT64_MAX), "f (requested 16 EiB = 18446744073709551615 B): busy");
}

TEST(error, a_detail_names_the_subject_and_the_cause) {
  const error plain{make_error_code(errc::corrupt), "image::open", "the checksum differs"};
  const error located = plain.with({.where = "superblock at 24", .found = "7", .expected = "9"});
  EXPECT_EQ(located.about("a.smi").message(),
            "a.smi: superblock at 24: image::open: the checksum differs (found 7, expected 9): "
            "corrupt");
  EXPECT_EQ(plain.with({.cause = "no space left"}).message(),
            "image::open: the checksum differs: corrupt: no space left");
  // The first subject stays; other strings are added.
  const error about = plain.about("a.smi").about("b.smi").with({.where = "record 3"});
  EXPECT_EQ(about.detail().subject, "a.smi");
  EXPECT_EQ(about.detail().where, "record 3");
  EXPECT_TRUE(plain.detail().subject.empty());
}

TEST(error, a_system_error_keeps_its_errno) {
  const status s = make_system_error(ENOENT, "cannot open the file", "a.smi");
  EXPECT_EQ(s.error().code, std::errc::no_such_file_or_directory);
  EXPECT_EQ(s.error().detail().subject, "a.smi");
}

TEST(result, copies_and_moves_keep_a_false_value) {
  result<bool> a = false;
  const result<bool> direct(a);
  const result<bool> braced{a};
  const result<bool> moved(std::move(a));
  for (const auto *r : {&direct, &braced, &moved}) {
    ASSERT_TRUE(r->has_value());
    EXPECT_FALSE(**r);
  }
}

TEST(result, and_then_calls_on_success_and_passes_an_error_on) {
  const result<int> three = 3;
  const auto twice = [](int n) { return result<int>(2 * n); };
  EXPECT_EQ(three.and_then(twice).value(), 6);
  const result<int> failed = make_error(errc::busy, "");
  EXPECT_TRUE(failed.and_then(twice).error().is(errc::busy));
  EXPECT_EQ(status().and_then([] { return result<int>(4); }).value(), 4);
  const status lost = make_error(errc::device_lost, "");
  EXPECT_TRUE(lost.and_then([] { return result<int>(4); }).error().is(errc::device_lost));
  EXPECT_EQ(result<std::unique_ptr<int>>(std::make_unique<int>(5))
                .and_then([](std::unique_ptr<int> p) { return result<int>(*p); })
                .value(),
            5);
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

TEST(error, driver_codes_map_to_portable_conditions) {
  const auto all = [](errc c, std::vector<int> codes) {
    for (int code : codes) EXPECT_TRUE(from_driver(code).is(c)) << describe_cuda_error(code).name;
  };
  all(errc::out_of_memory, {2});
  all(errc::invalid_argument, {1, 101, 201, 400});
  all(errc::not_supported, {3, 34, 100, 500, 800, 801, 802, 803, 900, 906});
  all(errc::busy, {46, 600, 708, 712, 807, 919});
  all(errc::device_lost, {4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719});
}

TEST(error, an_unknown_code_has_no_condition) {
  for (int code : {0, 304, 999, 12345, -7}) {
    for (int c = 1; c <= static_cast<int>(errc::operation_canceled); ++c) {
      EXPECT_FALSE(from_driver(code).is(static_cast<errc>(c))) << code;
    }
  }
  EXPECT_EQ(from_driver(12345).code.message(),
            "CUDA_ERROR_UNRECOGNISED 12345 (a code this version does not know)");
}

TEST(error, our_own_codes_equal_their_conditions) {
  for (int c = 1; c <= static_cast<int>(errc::operation_canceled); ++c) {
    const std::error_code code = make_error_code(static_cast<errc>(c));
    EXPECT_TRUE(code == static_cast<errc>(c));
    EXPECT_EQ(code.message().find("unknown"), std::string::npos);
    EXPECT_STREQ(code.category().name(), "stillmap");
    // The number means something else in the other category.
    EXPECT_NE(code, std::error_code(c, cuda_category()));
    EXPECT_EQ(code == std::errc::operation_canceled, code == errc::operation_canceled);
  }
  EXPECT_EQ(stillmap_category().message(0), "no error");
  EXPECT_NE(stillmap_category().message(99).find("unknown"), std::string::npos);
}

struct recorded_errors {
  std::vector<error> all;
  static void record(const error &e, void *user) noexcept {
    static_cast<recorded_errors *>(user)->all.push_back(e);
  }
};

TEST(error, a_background_error_is_counted_and_passed_to_the_sink) {
  recorded_errors h;
  const std::uint64_t before = background_error_count();
  set_error_sink(&recorded_errors::record, &h);
  report_background_error(from_driver(400));
  set_error_sink(nullptr, nullptr);
  report_background_error(from_driver(1));
  EXPECT_EQ(background_error_count() - before, 2u);
  ASSERT_EQ(h.all.size(), 1u);
  EXPECT_EQ(h.all[0].code.value(), 400);
}

TEST(error, a_driver_that_shuts_down_is_no_background_error) {
  recorded_errors h;
  const std::uint64_t before = background_error_count();
  set_error_sink(&recorded_errors::record, &h);
  for (int code : {3, 4, 709}) {
    EXPECT_TRUE(driver_is_gone(from_driver(code).code));
    report_background_error(from_driver(code));
  }
  set_error_sink(nullptr, nullptr);
  EXPECT_EQ(background_error_count(), before);
  EXPECT_TRUE(h.all.empty());
  // errc::invalid_argument is 3 too, but in another category.
  EXPECT_FALSE(driver_is_gone(make_error_code(errc::invalid_argument)));
  EXPECT_FALSE(driver_is_gone(from_driver(700).code));
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
