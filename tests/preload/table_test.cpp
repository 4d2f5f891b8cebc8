// The table of the driver's functions: what the library exports, and what a program finds instead of the driver's own.
#include <dlfcn.h>
#include <link.h>

#include <sstream>

#include "preload/functions/driver_functions.h"
#include "preload/lookup/elf_object.h"
#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class table : public testing::preload_test {};

TEST_F(table, is_exported_whole) {
  void *const library = ::dlopen(preload_library().c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  link_map *map = nullptr;
  ASSERT_EQ(::dlinfo(library, RTLD_DI_LINKMAP, &map), 0);
  const preload::elf_object object(*map);
#define STILLMAP_EXPORTED(symbol, ...) EXPECT_NE(object.function(#symbol), nullptr) << #symbol;
  STILLMAP_DRIVER_FUNCTIONS(STILLMAP_EXPORTED)
#undef STILLMAP_EXPORTED
  for (const char *const name : {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "dlsym",
                                 "dlvsym", "dlopen", "dlmopen"}) {
    EXPECT_NE(object.function(name), nullptr) << name;
  }
  // And nothing that another library of the program may have, too.
  for (const char *const name : {"stillmap_preload_dlsym", "malloc", "main"}) {
    EXPECT_EQ(object.function(name), nullptr) << name;
  }
}

// Each where the driver has it, under the same symbol, and with the same answer otherwise.
TEST_F(table, is_found_where_the_driver_has_it_and_in_the_same_version) {
  client_setting without;
  without.preloaded = false;
  const client_result plain = run("preload_table", {}, without);
  const client_result ours = run("preload_table", {});
  ASSERT_EQ(plain.status, 0) << plain.err;
  ASSERT_EQ(ours.status, 0) << ours.err;
  EXPECT_EQ(ours.err, "");
  const std::string driver = " in the driver";
  std::istringstream a(plain.out), b(ours.out);
  std::string first, second;
  int lines = 0, replaced = 0;
  while (std::getline(a, first)) {
    ASSERT_TRUE(std::getline(b, second));
    ++lines;
    const std::size_t at = first.find(driver);
    if (at != std::string::npos) {
      first.resize(at);
      ++replaced;
    }
    EXPECT_EQ(second, first);
  }
  EXPECT_GT(lines, 20000);
  EXPECT_GT(replaced, 10000);
}

}  // namespace
}  // namespace stillmap
