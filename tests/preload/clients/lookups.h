// The ways in which a program looks a function up, by name. Compiled into the program and into a library that it
// opens.
#pragma once

#include <dlfcn.h>

#include <string>
#include <string_view>

#include "tests/preload/clients/memory_user.h"

#if defined(__x86_64__)
#define OLD_GLIBC "GLIBC_2.2.5"
#else
#define OLD_GLIBC "GLIBC_2.17"
#endif

extern "C" {
void *dlsym_old(void *, const char *);
void *dlsym_new(void *, const char *);
void *dlvsym_old(void *, const char *, const char *);
void *dlvsym_new(void *, const char *, const char *);
}
__asm__(".symver dlsym_old, dlsym@" OLD_GLIBC);
__asm__(".symver dlsym_new, dlsym@GLIBC_2.34");
__asm__(".symver dlvsym_old, dlvsym@" OLD_GLIBC);
__asm__(".symver dlvsym_new, dlvsym@GLIBC_2.34");

// -1: no such way.
inline int use_found(std::string_view way, const std::string &folder) {
  void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  CLIENT_EXPECT(driver != nullptr);
  driver_pointers d;
  const auto use = [&](auto find) { return d.look_up(find) ? use_memory(d) : 1; };
  if (way == "dlsym") return use([&](const char *name) { return ::dlsym(driver, name); });
  if (way == "dlsym_old") return use([&](const char *name) { return dlsym_old(driver, name); });
  if (way == "dlsym_new") return use([&](const char *name) { return dlsym_new(driver, name); });
  // The driver has no versions; a library with versions passes its calls on.
  if (way.starts_with("dlvsym")) {
    void *const versioned = ::dlopen((folder + "/libpreload_versioned.so").c_str(), RTLD_NOW);
    CLIENT_EXPECT(versioned != nullptr);
    const auto find = way == "dlvsym_old" ? &dlvsym_old : &dlvsym_new;
    CLIENT_EXPECT(find(versioned, "cuMemAlloc_v2", "CUDA_2") == nullptr);
    CLIENT_EXPECT(find(driver, "cuMemAlloc_v2", "CUDA_1") == nullptr);
    return use([&](const char *name) { return find(versioned, name, "CUDA_1"); });
  }
  if (way == "next") return use([](const char *name) { return ::dlsym(RTLD_NEXT, name); });
  if (way == "default") return use([](const char *name) { return ::dlsym(RTLD_DEFAULT, name); });
  if (way == "next_old") return use([](const char *name) { return dlsym_old(RTLD_NEXT, name); });
  if (way == "default_old")
    return use([](const char *name) { return dlsym_old(RTLD_DEFAULT, name); });
  if (way == "whole_program") {
    void *const all = ::dlopen(nullptr, RTLD_NOW);
    return use([&](const char *name) { return ::dlsym(all, name); });
  }
  // The loader's own function, looked up first.
  if (way == "dlsym_of_libc") {
    void *const libc = ::dlopen("libc.so.6", RTLD_NOW);
    const auto find = reinterpret_cast<decltype(&::dlsym)>(::dlsym(libc, "dlsym"));
    CLIENT_EXPECT(find != nullptr);
    return use([&](const char *name) { return find(driver, name); });
  }
  if (way == "dlsym_by_dlvsym") {
    const auto find = reinterpret_cast<decltype(&::dlsym)>(::dlvsym(RTLD_NEXT, "dlsym", OLD_GLIBC));
    CLIENT_EXPECT(find != nullptr);
    return use([&](const char *name) { return find(driver, name); });
  }
  return -1;
}
