// Driver calls for streams and events.
#include "stillmap/vmm/driver/calls.h"

namespace stillmap {

using access = driver_access;

result<stream_handle> driver::create_stream(bool non_blocking) const {
  CUstream stream = nullptr;
  const unsigned flags = non_blocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  return access::make(*this, {driver_call::StreamCreate}, table().StreamCreate, &stream, flags)
      .map([&] { return stream; });
}

status driver::destroy_stream(stream_handle s) const {
  return access::make(*this, {driver_call::StreamDestroy}, table().StreamDestroy, s);
}

status driver::synchronize_stream(stream_handle s) const {
  return access::make(*this, {driver_call::StreamSynchronize}, table().StreamSynchronize, s);
}

result<bool> driver::stream_idle(stream_handle s) const {
  return access::ask(*this, {driver_call::StreamQuery}, table().StreamQuery, s);
}

status driver::stream_wait(stream_handle s, event_handle e) const {
  return access::make(*this, {driver_call::StreamWaitEvent}, table().StreamWaitEvent, s, e, 0u);
}

result<bool> driver::stream_capturing(stream_handle s) const {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  return access::make(*this, {driver_call::StreamIsCapturing}, table().StreamIsCapturing, s,
                      &capture)
      .map([&] { return capture != CU_STREAM_CAPTURE_STATUS_NONE; });
}

result<capture_mode> driver::exchange_capture_mode(capture_mode now) const {
  auto mode = static_cast<CUstreamCaptureMode>(now);
  return access::make(*this, {driver_call::ThreadExchangeStreamCaptureMode},
                      table().ThreadExchangeStreamCaptureMode, &mode)
      .map([&] { return static_cast<capture_mode>(mode); });
}

result<event_handle> driver::create_event() const {
  CUevent event = nullptr;
  const unsigned flags = CU_EVENT_DISABLE_TIMING;
  return access::make(*this, {driver_call::EventCreate}, table().EventCreate, &event, flags)
      .map([&] { return event; });
}

status driver::destroy_event(event_handle e) const {
  return access::make(*this, {driver_call::EventDestroy}, table().EventDestroy, e);
}

status driver::record_event(event_handle e, stream_handle s) const {
  return access::make(*this, {driver_call::EventRecord}, table().EventRecord, e, s);
}

result<bool> driver::event_done(event_handle e) const {
  return access::ask(*this, {driver_call::EventQuery}, table().EventQuery, e);
}

status driver::synchronize_event(event_handle e) const {
  return access::make(*this, {driver_call::EventSynchronize}, table().EventSynchronize, e);
}

// ---- kernels ----

result<module_handle> driver::load_module(const char *image) const {
  CUmodule module = nullptr;
  const void *const code = image;
  return access::make(*this, {driver_call::ModuleLoadData}, table().ModuleLoadData, &module, code)
      .map([&] { return module; });
}

status driver::unload_module(module_handle m) const {
  return access::make(*this, {driver_call::ModuleUnload}, table().ModuleUnload, m);
}

result<function_handle> driver::module_function(module_handle m, const char *name) const {
  CUfunction function = nullptr;
  return access::make(*this, {driver_call::ModuleGetFunction}, table().ModuleGetFunction, &function,
                      m, name)
      .map([&] { return function; });
}

status driver::launch(function_handle f, unsigned blocks, unsigned threads, void **params,
                      stream_handle stream) const {
  void **const extra = nullptr;
  const unsigned one = 1, none = 0;
  return access::make(*this, {driver_call::LaunchKernel}, table().LaunchKernel, f, blocks, one, one,
                      threads, one, one, none, stream, params, extra);
}

}  // namespace stillmap
