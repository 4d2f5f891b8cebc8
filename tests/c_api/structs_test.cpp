// Structs of older and of newer versions of the header.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "tests/c_api/world.h"
#include "tests/support/gpu_test.h"

namespace stillmap::testing {
namespace {

class c_api_structs : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) world_.emplace(false);
  }
  void TearDown() override {
    world_.reset();
    device_test::TearDown();
  }
  stillmap_status create(const void *options) {
    stillmap_buffer *made = nullptr;
    const stillmap_status s = stillmap_buffer_create(
        world_->device, static_cast<const stillmap_buffer_options *>(options), &made);
    if (s == STILLMAP_OK) {
      auto info = sized<stillmap_buffer_info>();
      EXPECT_TRUE(c_done(stillmap_buffer_get_info(made, &info)));
      reserved_ = info.reserved_bytes;
    }
    EXPECT_TRUE(c_done(stillmap_buffer_destroy(made)));
    return s;
  }
  // The options, with so many bytes of a later version after them.
  std::vector<std::size_t> larger(std::size_t more, std::size_t value) const {
    stillmap_buffer_options options{};
    options.struct_size = sizeof options + more * sizeof(std::size_t);
    options.reserve_bytes = 3 * world_->page;
    std::vector<std::size_t> words(options.struct_size / sizeof(std::size_t), value);
    std::memcpy(words.data(), &options, sizeof options);
    return words;
  }

  std::optional<c_world> world_;
  std::size_t reserved_ = 0;
};

TEST_F(c_api_structs, a_smaller_one_is_accepted_and_the_rest_is_the_default) {
  const std::size_t beginning[2] = {sizeof beginning, 3 * world_->page};
  EXPECT_TRUE(c_done(create(beginning)));
  if (world_->vmm) {
    EXPECT_EQ(reserved_, 3 * world_->page);
  }
  const std::size_t nothing = sizeof nothing;
  EXPECT_TRUE(c_done(create(&nothing)));
  EXPECT_NE(reserved_, 3 * world_->page);
}

TEST_F(c_api_structs, a_larger_one_is_accepted_if_what_is_unknown_is_zero) {
  EXPECT_TRUE(c_done(create(larger(1, 0).data())));
  EXPECT_TRUE(c_done(create(larger(40, 0).data())));
  for (const std::size_t more : {1U, 40U}) {
    EXPECT_EQ(create(larger(more, 1).data()), STILLMAP_NOT_SUPPORTED);
    const stillmap_error e = last_c_error();
    EXPECT_EQ(e.value, sizeof(stillmap_buffer_options) + more * sizeof(std::size_t));
    EXPECT_EQ(e.limit, sizeof(stillmap_buffer_options));
    EXPECT_EQ(e.unit, STILLMAP_UNIT_BYTES);
  }
}

TEST_F(c_api_structs, what_is_no_size_is_refused) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{17},
                                  std::size_t{4104}, SIZE_MAX, SIZE_MAX - 7}) {
    const std::size_t words[4] = {bytes, 0, 0, 0};
    EXPECT_EQ(create(words), STILLMAP_INVALID_ARGUMENT) << bytes;
    EXPECT_EQ(last_c_error().value, bytes);
  }
}

TEST_F(c_api_structs, results_fill_what_there_is_room_for) {
  auto whole = sized<stillmap_device_info>();
  ASSERT_TRUE(c_done(stillmap_device_get_info(world_->device, &whole)));
  // An older one: nothing is written after it.
  std::vector<unsigned char> bytes(sizeof whole, 0xee);
  std::size_t size = 24;
  std::memcpy(bytes.data(), &size, sizeof size);
  ASSERT_TRUE(c_done(stillmap_device_get_info(
      world_->device, reinterpret_cast<stillmap_device_info *>(bytes.data()))));
  EXPECT_EQ(std::memcmp(bytes.data() + 8, reinterpret_cast<unsigned char *>(&whole) + 8, 16), 0);
  EXPECT_TRUE(std::all_of(bytes.begin() + 24, bytes.end(), [](auto b) { return b == 0xee; }));
  // A newer one: what this library does not know is zero.
  bytes.assign(sizeof whole + 64, 0xee);
  size = bytes.size();
  std::memcpy(bytes.data(), &size, sizeof size);
  ASSERT_TRUE(c_done(stillmap_device_get_info(
      world_->device, reinterpret_cast<stillmap_device_info *>(bytes.data()))));
  std::memcpy(&size, bytes.data(), sizeof size);
  EXPECT_EQ(size, bytes.size());
  EXPECT_TRUE(
      std::all_of(bytes.begin() + sizeof whole, bytes.end(), [](auto b) { return b == 0; }));
}

}  // namespace
}  // namespace stillmap::testing
