// Driver calls for streams and events.
#include "stillmap/vmm/driver/calls.h"

namespace stillmap {

using enum driver_call;

result<stream_handle> driver::create_stream(bool non_blocking) const {
  const unsigned flags = non_blocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  return driver_access::get<StreamCreate, CUstream>(*this, {}, flags);
}

status driver::destroy_stream(stream_handle s) const {
  return driver_access::make<StreamDestroy>(*this, {}, s);
}

status driver::synchronize_stream(stream_handle s) const {
  return driver_access::make<StreamSynchronize>(*this, {}, s);
}

result<bool> driver::stream_idle(stream_handle s) const {
  return driver_access::ask<StreamQuery>(*this, s);
}

status driver::stream_wait(stream_handle s, event_handle e) const {
  return driver_access::make<StreamWaitEvent>(*this, {}, s, e, 0u);
}

result<bool> driver::stream_capturing(stream_handle s) const {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver_access::make<StreamIsCapturing>(*this, {}, s, &capture).map([&] {
    return capture != CU_STREAM_CAPTURE_STATUS_NONE;
  });
}

result<capture_mode> driver::exchange_capture_mode(capture_mode now) const {
  auto mode = static_cast<CUstreamCaptureMode>(now);
  return driver_access::make<ThreadExchangeStreamCaptureMode>(*this, {}, &mode).map([&] {
    return static_cast<capture_mode>(mode);
  });
}

result<event_handle> driver::create_event() const {
  return driver_access::get<EventCreate, CUevent>(*this, {}, CU_EVENT_DISABLE_TIMING);
}

status driver::destroy_event(event_handle e) const {
  return driver_access::make<EventDestroy>(*this, {}, e);
}

status driver::record_event(event_handle e, stream_handle s) const {
  return driver_access::make<EventRecord>(*this, {}, e, s);
}

result<bool> driver::event_done(event_handle e) const {
  return driver_access::ask<EventQuery>(*this, e);
}

status driver::synchronize_event(event_handle e) const {
  return driver_access::make<EventSynchronize>(*this, {}, e);
}

// ---- kernels ----

result<module_handle> driver::load_module(const char *image) const {
  return driver_access::get<ModuleLoadData, CUmodule>(*this, {}, image);
}

status driver::unload_module(module_handle m) const {
  return driver_access::make<ModuleUnload>(*this, {}, m);
}

result<function_handle> driver::module_function(module_handle m, const char *name) const {
  return driver_access::get<ModuleGetFunction, CUfunction>(*this, {}, m, name);
}

status driver::launch(function_handle f, unsigned blocks, unsigned threads, void **params,
                      stream_handle stream) const {
  return driver_access::make<LaunchKernel>(*this, {}, f, blocks, 1u, 1u, threads, 1u, 1u, 0u,
                                           stream, params, nullptr);
}

}  // namespace stillmap
