// What the preload finds in the service.
#include <type_traits>

#include "preload/door.h"
#include "preload/load_service.h"
#include "preload/service/serve.h"
#include "stillmap/vmm/base/start_thread.h"

namespace stillmap::preload {
namespace {

template <function f, class Signature>
struct entry;
template <function f, class... Arguments>
struct entry<f, driver_code(Arguments...)> {
  static driver_code call(Arguments... arguments) noexcept {
    return serve(numbered<f>(), arguments...);
  }
};

// The parameters of a wrapper, which calls with them.
template <function>
struct wrapper;
#define STILLMAP_DRIVER_WRAPPER(symbol, name, since, stream, wait, parameters, arguments) \
  template <>                                                                             \
  struct wrapper<function::symbol> {                                                      \
    using signature = driver_code parameters;                                             \
  };
#define STILLMAP_NVML_WRAPPER(symbol, parameters, arguments) \
  template <>                                                \
  struct wrapper<function::symbol> {                         \
    using signature = driver_code parameters;                \
  };
STILLMAP_DRIVER_FUNCTIONS(STILLMAP_DRIVER_WRAPPER)
STILLMAP_NVML_FUNCTIONS(STILLMAP_NVML_WRAPPER)
#undef STILLMAP_DRIVER_WRAPPER
#undef STILLMAP_NVML_WRAPPER

service_functions make_table() noexcept {
  service_functions table{};
#define STILLMAP_ENTRY(symbol, parameters)                                                     \
  static_assert(std::is_same_v<driver_code parameters, wrapper<function::symbol>::signature>); \
  table.all[static_cast<std::size_t>(function::symbol)] =                                      \
      reinterpret_cast<void *>(&entry<function::symbol, driver_code parameters>::call);
  STILLMAP_SERVED_FUNCTIONS(STILLMAP_ENTRY)
#undef STILLMAP_ENTRY
  return table;
}

}  // namespace
}  // namespace stillmap::preload

extern "C" __attribute__((visibility("default"))) const stillmap::preload::service_functions *
stillmap_preload_service(std::uint64_t numbering) noexcept {
  using namespace stillmap::preload;
  stillmap::at_thread_start = []() noexcept { door::let_this_thread_pass(); };
  static const service_functions table = make_table();
  return numbering == stillmap::preload::numbering() ? &table : nullptr;
}
