// The seam's calls about streams and events.
#include "stillmap/vmm/driver_calls_internal.h"

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

result<int> driver::exchange_capture_mode(int mode) const {
  auto swapped = static_cast<CUstreamCaptureMode>(mode);
  return access::make(*this, {driver_call::ThreadExchangeStreamCaptureMode},
                      table().ThreadExchangeStreamCaptureMode, &swapped)
      .map([&] { return static_cast<int>(swapped); });
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

}  // namespace stillmap
