#include "preload/service/ipc/refusal.h"

#include <system_error>

#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/base/operation.h"

namespace stillmap::preload {

driver_code code_of_refusal(const error &e) noexcept {
  if (e.code.category() == cuda_category()) {
    return e.code.value() == code::not_ready ? code::map_failed : e.code.value();
  }
  if (e.is(errc::out_of_memory)) return code::out_of_memory;
  const bool gone = e.is(errc::invalid_argument) || e.is(errc::corrupt) ||
                    e.code == std::errc::connection_refused ||
                    e.code == std::errc::connection_reset || e.code == std::errc::broken_pipe ||
                    e.code == std::errc::no_such_file_or_directory;
  return gone ? code::invalid_handle : code::map_failed;
}

tl::unexpected<error> make_driver_error(driver_code code, const char *reason) noexcept {
  error e;
  e.code = std::error_code(code, cuda_category());
  e.operation = operation_scope::current();
  e.reason = reason;
  return tl::unexpected<error>(std::move(e));
}

}  // namespace stillmap::preload
