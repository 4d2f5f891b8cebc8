// Streams, events and fences. Streams and events of the user are viewed, never owned. The events that
// fences record are recycled. A fence states when device work has finished with a resource.
// docs/pages.md#fences
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "stillmap/vmm/driver.h"

namespace stillmap {

class device;

// A view of a CUDA stream; never destroys it. The default, and a null handle, is the default stream of
// the program that includes this header: the legacy one, or the calling thread's where
// CUDA_API_PER_THREAD_DEFAULT_STREAM is defined, as `nvcc --default-stream per-thread` does. Source:
// CUDA Runtime API, "Stream synchronization behavior". A literal nullptr does not convert: write
// stream_ref::legacy() or stream_ref::per_thread().
class stream_ref {
 public:
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
  // Always inlined: files of one program may be compiled either way.
  [[gnu::always_inline]] stream_ref() : stream_ref(per_thread()) {}
  [[gnu::always_inline]] stream_ref(stream_handle s)  // NOLINT: a view converts
      : handle_(s != nullptr ? s : per_thread().handle_) {}
#else
  constexpr stream_ref() = default;
  constexpr stream_ref(stream_handle s) : handle_(s) {}  // NOLINT: a view converts
#endif
  stream_ref(std::nullptr_t) = delete;
  // The legacy default stream (CU_STREAM_LEGACY): synchronises with every blocking stream.
  static constexpr stream_ref legacy() {
    return {exactly(), nullptr};
  }
  // The calling thread's default stream (CU_STREAM_PER_THREAD): another stream in each thread.
  static stream_ref per_thread() {
    return {exactly(), reinterpret_cast<stream_handle>(0x2)};
  }
  constexpr stream_handle get() const {
    return handle_;
  }
  constexpr bool operator==(const stream_ref &) const = default;

 private:
  struct exactly {};
  constexpr stream_ref(exactly, stream_handle s) : handle_(s) {}

  stream_handle handle_ = nullptr;
};

// A view of a CUDA event; never destroys it.
class event_ref {
 public:
  constexpr event_ref(event_handle e) : handle_(e) {}  // NOLINT: a view converts
  constexpr event_handle get() const { return handle_; }
  constexpr bool operator==(const event_ref &) const = default;

 private:
  event_handle handle_;
};

// Owns a stream. Destroying it does not wait for its work (as in CUDA).
class stream {
 public:
  // Errors: the driver's. Cost: one call, plus the context switch.
  static result<stream> create(const device &d, bool non_blocking = true);
  stream(stream &&other) noexcept;
  stream &operator=(stream &&other) noexcept;
  ~stream();

  stream_handle get() const { return handle_; }
  operator stream_ref() const { return handle_; }  // NOLINT: a view of it
  status synchronize() const;
  result<bool> idle() const;

 private:
  struct state;
  stream() = default;
  stream_handle handle_ = nullptr;
  std::shared_ptr<state> state_;
};

namespace detail {
struct recorded_event;  // an event of a device's event pool; goes back when the last fence drops it
}

// A set of events after which device work has finished with a resource. Copies share the events, and
// copying takes no host memory. An empty fence has passed.
// Threads: a fence object is externally synchronised; copies are independent.
class fence {
 public:
  fence() = default;  // already passed

  // Passes after everything queued on `s` so far. Requires: `s` belongs to `d`'s primary context.
  // Errors: not_supported while `s` captures a graph (an event recorded there never passes); the
  //         driver's. If another thread begins and ends a capture of `s` during the call, queries and
  //         waits of the fence may fail.
  // Cost:   two capture queries and one record; an event is created only when none is free to reuse.
  static result<fence> after(const device &d, stream_ref s);
  // The same for a fence that the caller records again when a query of it fails. That is the case, too,
  // where another thread ends a capture of `s` during the call. Cost: one capture query less.
  static result<fence> after_for_retry(const device &d, stream_ref s);

  // Passes when `e` does: for callers that record events themselves.
  // Requires: until the fence has passed, `e` lives and is not recorded again.
  // Errors: invalid_argument (no event). Cost: none.
  static result<fence> of(const device &d, event_ref e);

  bool trivially_passed() const { return !one_ && !several_; }

  // Adds the events of `other`. Errors: out_of_memory (of the host: this fence is as it was).
  status join(const fence &other);

  // Whether all events have passed.
  // Cost: one query per event not yet seen passed.
  result<bool> passed();

  // Blocks the calling thread. Cost: one call per event not yet seen passed.
  status wait();

  // Work queued on `s` from now on waits for the fence; the host does not. Cost: one call per event.
  status make_wait(const device &d, stream_ref s) const;

 private:
  using event_ptr = std::shared_ptr<detail::recorded_event>;
  static result<fence> record(const device &d, stream_ref s, bool refuse_first);
  std::span<const event_ptr> events() const;
  void clear();
  event_ptr one_;  // the usual case, or
  std::shared_ptr<const std::vector<event_ptr>> several_;
};

}  // namespace stillmap
