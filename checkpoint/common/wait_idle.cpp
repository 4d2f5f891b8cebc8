#include "stillmap/checkpoint/common/wait_idle.h"

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::checkpoint {
namespace {

// Waiting for a context would invalidate the captures of its streams. The query of the legacy stream
// fails while any blocking stream captures; other streams are not known here.
status refuse_if_capturing(const driver &drv) {
  for (const stream_ref s : {stream_ref::legacy(), stream_ref::per_thread()}) {
    const auto capturing = drv.stream_capturing(s.get());
    if (!capturing && !capturing.error().is(errc::not_supported)) {
      return tl::unexpected(capturing.error());
    }
    if (capturing && !*capturing) continue;
    return make_error(errc::busy,
                      "a stream captures a graph, which waiting for the device would invalidate: "
                      "end the capture first, or name the work to wait for");
  }
  return {};
}

}  // namespace

status wait_until_idle(const device &d, const std::optional<fence> &idle) {
  const operation_scope scope("checkpoint::wait_until_idle");
  if (idle) return fence(*idle).wait();
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_RETURN_IF_ERROR(refuse_if_capturing(d.driver()));
  return d.driver().synchronize_context();
}

}  // namespace stillmap::checkpoint
