// A program that is linked to a library with variables of the names of the driver's functions; with an argument, it
// opens a library with RTLD_DEEPBIND first, whereupon the preload binds slots again.
#include <dlfcn.h>

#include <string>
#include <string_view>

#include "tests/preload/clients/memory_user.h"

extern "C" {
int load_variables();
void *variable(int which);
}

int main(int count, char **words) {
  if (count > 1) {
    CLIENT_EXPECT(::dlopen((std::string(words[1]) + "/libpreload_linked.so").c_str(),
                           RTLD_NOW | RTLD_DEEPBIND) != nullptr);
  }
  CLIENT_CHECK(load_variables());
  void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  // What is looked up is the variable, not a wrapper of the function.
  CLIENT_EXPECT(*static_cast<void **>(::dlsym(
                    ::dlopen("libpreload_variables.so", RTLD_NOW | RTLD_NOLOAD), "cuInit")) ==
                variable(0));
  driver_pointers d;
  CLIENT_EXPECT(d.look_up([&](const char *name) -> void * {
    const std::string_view s = name;
    if (s == "cuInit") return variable(0);
    if (s == "cuMemAlloc_v2") return variable(1);
    if (s == "cuMemFree_v2") return variable(2);
    return ::dlsym(driver, name);
  }));
  return use_memory(d);
}
