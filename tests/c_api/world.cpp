#include "tests/c_api/world.h"

#include <fstream>
#include <stdexcept>

#include "tests/support/unique_name.h"

namespace stillmap::testing {
namespace {

void must(stillmap_status s) {
  if (s != STILLMAP_OK) throw std::runtime_error(c_message());
}

}  // namespace

stillmap_error last_c_error() {
  auto e = sized<stillmap_error>();
  EXPECT_EQ(stillmap_error_last(&e), STILLMAP_OK);
  return e;
}

std::vector<std::string> exported_functions() {
  std::ifstream file("c_api/exports.map");
  std::vector<std::string> names;
  for (std::string word; file >> word;) {
    if (word.starts_with("stillmap_") && word.back() == ';') {
      names.push_back(word.substr(0, word.size() - 1));
    }
  }
  return names;
}

c_world::c_world(bool with_quota) {
  must(stillmap_device_open(0, &device));
  auto info = sized<stillmap_device_info>();
  must(stillmap_device_get_info(device, &info));
  page = info.page_bytes;
  vmm = info.vmm != 0;
  auto options = sized<stillmap_buffer_options>();
  options.reserve_bytes = 16 * page;
  options.tag = "buffer";
  must(stillmap_buffer_create(device, &options, &buffer));
  must(stillmap_buffer_resize(buffer, page));
  options.tag = "vector";
  must(stillmap_vector_create(device, 4, &options, nullptr, &vector));
  const int values[4] = {1, 2, 3, 4};
  must(stillmap_vector_append(vector, values, 4));
  must(stillmap_allocator_create(device, nullptr, &allocator));
  must(stillmap_suspender_create(device, nullptr, &suspender));
  if (!with_quota) return;
  quota_name = unique_name("stillmap-c-api");
  auto quota_options = sized<stillmap_quota_options>();
  quota_options.limit_bytes = 64 * page;
  must(stillmap_quota_open(quota_name.c_str(), &quota_options, &quota));
}

c_world::~c_world() {
  EXPECT_EQ(stillmap_suspender_destroy(suspender), STILLMAP_OK);
  EXPECT_EQ(stillmap_allocator_destroy(allocator), STILLMAP_OK);
  EXPECT_EQ(stillmap_vector_destroy(vector), STILLMAP_OK);
  EXPECT_EQ(stillmap_buffer_destroy(buffer), STILLMAP_OK);
  EXPECT_EQ(stillmap_quota_close(quota), STILLMAP_OK);
  if (quota != nullptr) stillmap_quota_remove(quota_name.c_str());
  EXPECT_EQ(stillmap_device_close(device), STILLMAP_OK);
}

}  // namespace stillmap::testing
