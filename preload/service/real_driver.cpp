#include "preload/service/real_driver.h"

#include <dlfcn.h>

#include "preload/lookup/loaded_objects.h"
#include "stillmap/vmm/base/operation.h"

namespace stillmap::preload {

result<driver *> open_real_driver() {
  const operation_scope scope("stillmap_preload");
  // Which other interposers have no reason to wrap.
  void *const function = find_behind_us("cuGetExportTable");
  Dl_info where;
  if (function == nullptr || ::dladdr(function, &where) == 0 || where.dli_fname == nullptr) {
    return make_error(errc::not_supported, "the program's first namespace has no driver");
  }
  return driver::load(where.dli_fname);
}

}  // namespace stillmap::preload
