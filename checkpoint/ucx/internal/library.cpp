#include "stillmap/checkpoint/ucx/internal/library.h"

#include <dlfcn.h>

#include <string>

namespace stillmap::ucx {
namespace {

struct loaded_library {
  ucx_functions functions;
  std::string problem;  // empty: all functions are there
};

loaded_library load_ucp() {
  loaded_library out;
  void *const library = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char *const why = ::dlerror();
    out.problem = why != nullptr ? why : "libucp.so.0";
    return out;
  }
#define STILLMAP_UCX_LOOK_UP(name)                                                   \
  out.functions.name = reinterpret_cast<decltype(&::name)>(::dlsym(library, #name)); \
  if (out.functions.name == nullptr) out.problem = #name;
  STILLMAP_UCX_FUNCTIONS(STILLMAP_UCX_LOOK_UP)  // libucp's dependencies have ucs_*
#undef STILLMAP_UCX_LOOK_UP
  return out;
}

// Never destroyed: channels may live as long as the process.
const loaded_library &loaded_ucp() {
  static const loaded_library &it = *new loaded_library(load_ucp());
  return it;
}

}  // namespace

status load_library() {
  const std::string &problem = loaded_ucp().problem;
  if (problem.empty()) return {};
  return tl::unexpected(
      make_error(errc::not_supported, "UCX cannot be loaded: install it (Debian: libucx0)")
          .value()
          .about(problem));
}

const ucx_functions &api() noexcept {
  return loaded_ucp().functions;
}

}  // namespace stillmap::ucx
