#include "stillmap/checkpoint/common/host_memory.h"

#include <sys/resource.h>

#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::checkpoint {
namespace {

// The driver cannot pin that much, although the host has it. Where locked memory is limited, that is
// the likely reason.
error refused_by_driver(const error &e, std::size_t bytes, const char *advice) {
  if (!e.is(errc::out_of_memory)) return e;
  error out{e.code, operation_scope::current(), advice, bytes, 0, error_unit::bytes};
  rlimit locked = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur < bytes) {
    out.limit = locked.rlim_cur;
    out = out.about("RLIMIT_MEMLOCK (ulimit -l)");
  }
  return out.with({.cause = "by the driver: " + e.message()});
}

}  // namespace

result<host_memory> host_memory::create(const device &d, std::size_t bytes, const char *advice) {
  const operation_scope scope("host_memory::create");
  host_memory out;
  if (bytes == 0) return out;
  STILLMAP_RETURN_IF_ERROR(check_host_room(bytes, advice));
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const auto data = d.driver().allocate_host(bytes);
  if (!data) {
    return tl::unexpected(refused_by_driver(data.error(), bytes, advice));
  }
  out.device_ = d;
  out.data_ = static_cast<std::byte *>(*data);
  out.bytes_ = bytes;
  return out;
}

host_memory::~host_memory() {
  if (data_ == nullptr) return;
  const context_guard guard(device_->driver(), device_->context());
  const status s = guard.entered() ? device_->driver().free_host(data_) : guard.entered();
  if (!s) report_background_error(s.error());
}

}  // namespace stillmap::checkpoint
