// Every function that the headers of this major version declare is exported, under its version.
#include <dlfcn.h>

#include "runtime_fixture.h"

namespace cudart_tests {
namespace {

constexpr const char *exported_names[] = {
#define X(name) #name,
#if CUDART_VERSION < 13000
#define X12(name) #name,
#define X13(name)
#else
#define X12(name)
#define X13(name) #name,
#endif
#include "hostcuda/cudart/src/function_list.h"
#undef X
#undef X12
#undef X13
    "__cudaRegisterFatBinary", "__cudaPushCallConfiguration", "__cudaGetKernel",
    "__cudaLaunchKernel_ptsz"};

TEST(runtime_exports, have_the_version_of_the_library) {
  const std::string name = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);
  void *const library = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  for (const char *symbol : exported_names)
    EXPECT_NE(dlvsym(library, symbol, name.c_str()), nullptr) << symbol;
  EXPECT_EQ(dlsym(library, "_ZN6cudart4bindEv"), nullptr);
}

TEST(runtime_exports, undocumented_tables_are_not_served) {
  const void *table = &table;
  const cudaUUID_t id{};
  EXPECT_EQ(cudaGetExportTable(&table, &id), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
}

}  // namespace
}  // namespace cudart_tests
