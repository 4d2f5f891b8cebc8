#include <filesystem>
#include <fstream>
#include <sstream>

#include "stillmap/vmm/stream.h"
#include "tests/c_api/every_function.h"
#include "tests/c_api/world.h"
#include "tests/support/gpu_test.h"
#include "tests/support/unique_name.h"

namespace stillmap::testing {
namespace {

class c_api_in_c : public device_test {};

TEST_F(c_api_in_c, a_program_in_c_uses_every_function) {
  const auto folder = std::filesystem::temp_directory_path() / unique_name("stillmap-c-api");
  std::filesystem::create_directory(folder);
  char report[1024] = "";
  {
    const device d = open_device();
    const stream s = std::move(*stream::create(d));
    EXPECT_EQ(c_api_every_function(s.get(), folder.c_str(), unique_name("stillmap-c").c_str(),
                                   report, sizeof report),
              0)
        << report;
  }
  std::filesystem::remove_all(folder);
}

TEST_F(c_api_in_c, the_program_names_every_exported_function) {
  std::ifstream file("tests/c_api/every_function.c");
  std::stringstream text;
  text << file.rdbuf();
  const auto names = exported_functions();
  EXPECT_GE(names.size(), 100U);
  for (const std::string &name : names) {
    EXPECT_NE(text.str().find(name + "("), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace stillmap::testing
