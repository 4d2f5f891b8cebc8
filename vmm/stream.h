// Streams, events and fences. Streams are views of what the user made; events are owned and
// recycled; a fence says when device work no longer touches something. docs/design.md#fences
#pragma once

#include <memory>
#include <vector>

#include "stillmap/vmm/driver.h"

namespace stillmap {

class device;

// A view of a CUDA stream; never destroys it. Default: the legacy default stream.
class stream_ref {
 public:
  constexpr stream_ref() = default;
  constexpr stream_ref(stream_handle s) : handle_(s) {}  // NOLINT: a view converts
  constexpr stream_handle get() const { return handle_; }
  constexpr bool operator==(const stream_ref &) const = default;

 private:
  stream_handle handle_ = nullptr;
};

// A stream of our own. Destroying it does not wait for its work (as CUDA has it).
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

// The moments after which device work no longer touches something. Copying shares the events.
// An empty fence is passed: nothing can be touching the thing any more.
// Threads: a fence object is externally synchronised; copies are independent.
class fence {
 public:
  fence() = default;  // already passed

  // After everything queued on `s` so far. `s` belongs to `d`'s primary context.
  // Errors: not_supported while `s` captures a graph (an event recorded there never passes);
  //         the driver's. Cost: is-capturing + one record; an event is created only when none
  //         is free to reuse.
  static result<fence> after(const device &d, stream_ref s);

  bool trivially_passed() const { return events_.empty(); }

  // Adds what `other` waits for.
  void join(const fence &other);

  // Whether all of it has happened; forgets what has. Cost: one query per event not yet seen
  // passed.
  result<bool> passed();

  // Blocks the calling thread. Cost: one call per event not yet seen passed.
  status wait();

  // Makes work queued on `s` from now on wait; the host does not. Cost: one call per event.
  status make_wait(const device &d, stream_ref s) const;

 private:
  std::vector<std::shared_ptr<detail::recorded_event>> events_;
};

}  // namespace stillmap
