// Reading of loaded objects, whatever hash tables the linker made.
#include "preload/lookup/elf_object.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>

#include <set>
#include <string>

#include "tests/preload/preload_test.h"

namespace stillmap::preload {
namespace {

class elf_object_test : public testing::preload_test,
                        public ::testing::WithParamInterface<const char *> {
 protected:
  void SetUp() override {
    preload_test::SetUp();
    handle_ = ::dlopen(built(std::string("libpreload_hash_") + GetParam() + ".so").c_str(),
                       RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle_, nullptr) << ::dlerror();
    ASSERT_EQ(::dlinfo(handle_, RTLD_DI_LINKMAP, &map_), 0);
  }
  void TearDown() override {
    if (handle_ != nullptr) ::dlclose(handle_);
    preload_test::TearDown();
  }
  void *handle_ = nullptr;
  link_map *map_ = nullptr;
};

TEST_P(elf_object_test, has_the_hash_tables_that_it_was_linked_with) {
  bool gnu = false, sysv = false;
  for (const ElfW(Dyn) *d = map_->l_ld; d->d_tag != DT_NULL; ++d) {
    gnu = gnu || d->d_tag == DT_GNU_HASH;
    sysv = sysv || d->d_tag == DT_HASH;
  }
  const std::string kind = GetParam();
  EXPECT_EQ(gnu, kind != "sysv");
  EXPECT_EQ(sysv, kind != "gnu");
}

TEST_P(elf_object_test, finds_functions_and_variables_of_its_own_only) {
  const elf_object object(*map_);
  for (const char *const name : {"hash_first", "hash_second", "hash_third", "hash_weak"}) {
    EXPECT_EQ(object.function(name), ::dlsym(handle_, name)) << name;
    EXPECT_NE(object.function(name), nullptr) << name;
    EXPECT_EQ(object.variable(name), nullptr) << name;
  }
  EXPECT_EQ(object.variable("hash_variable"), ::dlsym(handle_, "hash_variable"));
  EXPECT_NE(object.variable("hash_variable"), nullptr);
  for (const char *const name :
       {"hash_variable", "puts", "hash_hidden", "hash_missing", "", "hash_firs", "hash_firsta"}) {
    EXPECT_EQ(object.function(name), nullptr) << name;
  }
  // An indirect function is what its resolver chooses.
  const auto chosen = reinterpret_cast<int (*)()>(object.function("hash_indirect"));
  ASSERT_NE(chosen, nullptr);
  EXPECT_EQ(chosen(), 42);
}

TEST_P(elf_object_test, visits_the_slots_of_what_it_uses_of_others) {
  std::set<std::string> names;
  elf_object(*map_).for_each_slot([&](const char *name, void **slot) {
    names.insert(name);
    EXPECT_NE(slot, nullptr);
    if (std::string(name) == "puts") {
      EXPECT_NE(*slot, nullptr);
    }
  });
  EXPECT_EQ(names.count("puts"), 1u);
  EXPECT_EQ(names.count("getpid"), 1u) << "the address is in a table of the object";
}

INSTANTIATE_TEST_SUITE_P(kinds, elf_object_test, ::testing::Values("sysv", "gnu", "both"));

TEST(elf_object, without_a_dynamic_section_has_nothing) {
  const elf_object none(0x1000, nullptr);
  EXPECT_EQ(none.function("cuInit"), nullptr);
  EXPECT_EQ(none.variable("cuInit"), nullptr);
  none.for_each_slot([](const char *, void **) { FAIL(); });
  const ElfW(Dyn) end{};
  EXPECT_EQ(elf_object(0x1000, &end).function("cuInit"), nullptr);
}

TEST(elf_object, without_functions_has_none) {
  void *const handle = ::dlopen((testing::built_for_preload("libpreload_hash_none.so")).c_str(),
                                RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << ::dlerror();
  link_map *map = nullptr;
  ASSERT_EQ(::dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
  EXPECT_EQ(elf_object(*map).function("cuInit"), nullptr);
  EXPECT_EQ(elf_object(*map).variable("cuInit"), nullptr);
  ::dlclose(handle);
}

// Its dynamic section is read-only, so that the loader has added nothing to its addresses.
TEST(elf_object, of_the_kernel_is_read) {
  const auto base = ::getauxval(AT_SYSINFO_EHDR);
  if (base == 0) GTEST_SKIP() << "there is no vDSO";
  const auto *const header = reinterpret_cast<const ElfW(Ehdr) *>(base);
  const auto *const segments = reinterpret_cast<const ElfW(Phdr) *>(base + header->e_phoff);
  const ElfW(Dyn) *dynamic = nullptr;
  for (int i = 0; i < header->e_phnum; ++i) {
    if (segments[i].p_type == PT_DYNAMIC)
      dynamic = reinterpret_cast<const ElfW(Dyn) *>(base + segments[i].p_vaddr);
  }
  const elf_object object(base, dynamic);
#if defined(__x86_64__)
  EXPECT_NE(object.function("__vdso_clock_gettime"), nullptr);
#endif
  EXPECT_EQ(object.function("cuInit"), nullptr);
}

}  // namespace
}  // namespace stillmap::preload
