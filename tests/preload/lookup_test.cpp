// Each way in which a program finds the driver's functions, alone and with a second interposer: Stillmap serves the
// memory, and the bytes are right.
#include <filesystem>

#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

struct company {
  const char *name, *before, *behind;
};
constexpr company companies[] = {
    {"alone", "", ""},
    {"memory_before", "libpreload_wrap_memory.so", ""},
    {"memory_behind", "", "libpreload_wrap_memory.so"},
    {"proc_address_before", "libpreload_wrap_by_proc_address.so", ""},
    {"proc_address_behind", "", "libpreload_wrap_by_proc_address.so"},
    {"dlsym_before", "libpreload_wrap_dlsym.so", ""},
    {"dlsym_behind", "", "libpreload_wrap_dlsym.so"},
};

std::ostream &operator<<(std::ostream &out, const company &c) {
  return out << c.name;
}

struct way {
  const char *name, *client, *argument;
};
std::ostream &operator<<(std::ostream &out, const way &w) {
  return out << w.name;
}

constexpr way ways[] = {
    {"linked", "preload_linked", ""},
    {"linked_library", "preload_finder", "library"},
    {"deepbind", "preload_finder", "deepbind"},
    {"dlmopen", "preload_finder", "dlmopen"},
    {"dlsym", "preload_finder", "dlsym"},
    {"dlsym_old", "preload_finder", "dlsym_old"},
    {"dlsym_new", "preload_finder", "dlsym_new"},
    {"dlvsym_old", "preload_finder", "dlvsym_old"},
    {"dlvsym_new", "preload_finder", "dlvsym_new"},
    {"next", "preload_finder", "next"},
    {"default_scope", "preload_finder", "default"},
    {"next_old", "preload_finder", "next_old"},
    {"default_old", "preload_finder", "default_old"},
    {"whole_program", "preload_finder", "whole_program"},
    {"dlsym_of_libc", "preload_finder", "dlsym_of_libc"},
    {"dlsym_by_dlvsym", "preload_finder", "dlsym_by_dlvsym"},
    {"next_in_library", "preload_finder", "library:next"},
    {"default_in_library", "preload_finder", "library:default"},
    {"dlsym_in_library", "preload_finder", "library:dlsym"},
    {"dlsym_old_in_library", "preload_finder", "library:dlsym_old"},
    {"proc_address_v1", "preload_finder", "proc_address_v1"},
    {"proc_address_v1_new", "preload_finder", "proc_address_v1_new"},
    {"proc_address_v2", "preload_finder", "proc_address_v2"},
    {"proc_address_v2_legacy", "preload_finder", "proc_address_v2_legacy"},
    {"proc_address_v2_per_thread", "preload_finder", "proc_address_v2_per_thread"},
    {"proc_address_v2_old", "preload_finder", "proc_address_v2_old"},
};

class lookup : public testing::preload_test,
               public ::testing::WithParamInterface<std::tuple<way, company>> {};

TEST_P(lookup, is_served) {
  const auto &[w, c] = GetParam();
  client_setting setting;
  setting.before = c.before;
  setting.behind = c.behind;
  setting.variables = {"WRAP_COUNTS=" + file("counts")};
  std::vector<std::string> arguments;
  if (*w.argument != 0) arguments = {w.argument, clients_folder()};
  expect_served(run(w.client, arguments, setting));
}

class runtime : public testing::preload_test, public ::testing::WithParamInterface<company> {};

TEST_P(runtime, is_served_in_a_library_and_in_the_program) {
  if (!std::filesystem::exists(built("preload_runtime")))
    GTEST_SKIP() << "needs the headers of the CUDA runtime";
  client_setting setting;
  setting.before = GetParam().before;
  setting.behind = GetParam().behind;
  expect_served(run("preload_runtime", {}, setting));
  expect_served(run("preload_static_runtime", {}, setting));
}
INSTANTIATE_TEST_SUITE_P(companies, runtime, ::testing::ValuesIn(companies),
                         [](const auto &param) { return std::string(param.param.name); });

class variables : public testing::preload_test {};

// Not with an interposer that defines the functions: its own would take the place of the variables.
TEST_F(variables, of_a_library_stay_its_own) {
  for (const char *const other : {"", "libpreload_wrap_dlsym.so"}) {
    for (const bool before : {true, false}) {
      client_setting setting;
      (before ? setting.before : setting.behind) = other;
      SCOPED_TRACE(other);
      expect_served(run("preload_variables", {}, setting));
      expect_served(run("preload_variables", {clients_folder()}, setting));
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<way, company>> &info) {
  return std::string(std::get<0>(info.param).name) + "__" + std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(ways, lookup,
                         ::testing::Combine(::testing::ValuesIn(ways),
                                            ::testing::ValuesIn(companies)),
                         name_of);

}  // namespace
}  // namespace stillmap
