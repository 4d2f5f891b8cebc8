// A program that is not linked to the driver: finder WAY [FOLDER], where FOLDER has the libraries that it opens.
#include <dlfcn.h>

#include <string>

#include "tests/preload/clients/lookups.h"

namespace {

std::string folder;

template <class Function>
Function *in(void *library, const char *name) {
  if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
  return library != nullptr ? reinterpret_cast<Function *>(::dlsym(library, name)) : nullptr;
}

int use_library(int flags) {
  const auto use = in<int()>(::dlopen((folder + "/libpreload_linked.so").c_str(), RTLD_NOW | flags),
                             "use_linked");
  CLIENT_EXPECT(use != nullptr);
  return use();
}

int use_other_namespace(bool driver_here) {
  if (driver_here) CLIENT_EXPECT(::dlopen("libcuda.so.1", RTLD_NOW) != nullptr);
  const std::string file = folder + "/libpreload_linked.so";
  const auto use = in<int()>(::dlmopen(LM_ID_NEWLM, file.c_str(), RTLD_NOW), "use_linked");
  CLIENT_EXPECT(use != nullptr);
  const int result = use();
  // stdout of the other namespace is its own.
  if (result == 0) std::printf("blocks 4\n");
  return result;
}

int use_proc_address(const char *symbol, int version, unsigned flags) {
  void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  CLIENT_EXPECT(driver != nullptr);
  void *const find = ::dlsym(driver, symbol);
  CLIENT_EXPECT(find != nullptr);
  driver_pointers d;
  const bool v2 = std::string_view(symbol).find("_v2") != std::string_view::npos;
  const auto ask = [&](const char *name) -> void * {
    std::string plain = name;
    if (plain.ends_with("_v2")) plain.resize(plain.size() - 3);
    void *found = nullptr;
    int status = 0;
    const CUresult r =
        v2 ? reinterpret_cast<CUresult (*)(const char *, void **, int, std::uint64_t, int *)>(find)(
                 plain.c_str(), &found, version, flags, &status)
           : reinterpret_cast<CUresult (*)(const char *, void **, int, std::uint64_t)>(find)(
                 plain.c_str(), &found, version, flags);
    return r == CUDA_SUCCESS ? found : nullptr;
  };
  return d.look_up(ask) ? use_memory(d) : 1;
}

}  // namespace

int main(int count, char **words) {
  const std::string way = count > 1 ? words[1] : "";
  if (count > 2) folder = words[2];
  if (way == "library") return use_library(0);
  if (way == "deepbind") return use_library(RTLD_DEEPBIND);
  if (way == "dlmopen") return use_other_namespace(true);
  if (way.starts_with("library:")) {
    const auto use = in<int(const char *, const char *)>(
        ::dlopen((folder + "/libpreload_lookup.so").c_str(), RTLD_NOW), "use_found_in_library");
    CLIENT_EXPECT(use != nullptr);
    return use(way.c_str() + 8, folder.c_str());
  }
  if (way == "proc_address_v1") return use_proc_address("cuGetProcAddress", 11030, 0);
  if (way == "proc_address_v1_new") return use_proc_address("cuGetProcAddress", 13000, 0);
  if (way == "proc_address_v2") return use_proc_address("cuGetProcAddress_v2", 12000, 0);
  if (way == "proc_address_v2_legacy") return use_proc_address("cuGetProcAddress_v2", 13000, 1);
  if (way == "proc_address_v2_per_thread") return use_proc_address("cuGetProcAddress_v2", 12000, 2);
  if (way == "proc_address_v2_old") return use_proc_address("cuGetProcAddress_v2", 7000, 0);
  return use_found(way, folder);
}
