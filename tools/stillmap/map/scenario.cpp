#include "tools/stillmap/map/scenario.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "tools/stillmap/common/size.h"

namespace stillmap::tool {
namespace {

tl::unexpected<failure> failed(const operation &op, const error &e) {
  failure f(e);
  f.line = at_operation(op, f.line);
  return tl::unexpected(std::move(f));
}

outcome<void> done(const operation &op, const status &s) {
  if (s) return {};
  return failed(op, s.error());
}

// Ends when release_work() is called. Runs on a thread of the driver.
void wait_until_open(void *gate) {
  while (!static_cast<std::atomic<bool> *>(gate)->load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace

outcome<scenario> scenario::create(const device &d, std::uint64_t reserve) {
  STILLMAP_ASSIGN_OR_RETURN(stream s, stream::create(d));
  return scenario(d, reserve, std::move(s));
}

scenario::~scenario() {
  // A driver that does not say that the host function has returned may still read the gate.
  if (!release_work()) (void)gate_.release();
}

std::string scenario::name_at(device_address at) const {
  for (const auto &[name, buffer] : buffers_) {
    if (buffer.address() == at) return name;
  }
  return "";
}

outcome<growable_buffer *> scenario::find(const operation &op, const std::string &name) {
  const auto at = buffers_.find(name);
  if (at != buffers_.end()) return &at->second;
  return fail(exit_usage, at_operation(op, fmt::format("there is no buffer '{}' yet", name)));
}

outcome<growable_buffer *> scenario::find_or_make(const operation &op, const std::string &name,
                                                  std::uint64_t reserve) {
  if (const auto at = buffers_.find(name); at != buffers_.end()) return &at->second;
  buffer_options options;
  options.reserve_bytes = static_cast<std::size_t>(reserve);
  options.tag = name;
  STILLMAP_RETURN_IF_ERROR(add(op, name, growable_buffer::create(device_, std::move(options))));
  return &buffers_.at(name);
}

// Requires: no buffer has this name yet.
outcome<void> scenario::add(const operation &op, const std::string &name,
                            result<growable_buffer> made) {
  if (!made) return failed(op, made.error());
  buffers_.emplace(name, std::move(*made));
  return {};
}

// Holds the stream with a host function, so that pages released from here on wait for a fence.
outcome<void> scenario::hold(const operation &op) {
  if (gate_) return {};
  const driver &drv = device_.driver();
  const context_guard guard(drv, device_.context());
  gate_ = std::make_unique<std::atomic<bool>>(false);
  using host_function = void (*)(void *);
  const auto launch = reinterpret_cast<int (*)(stream_handle, host_function, void *)>(
      drv.symbol("cuLaunchHostFunc"));
  if (launch == nullptr) {
    gate_.reset();
    return failed(
        op, error{make_error_code(errc::not_supported), "cuLaunchHostFunc", "the driver has none"});
  }
  if (const int r = launch(stream_.get(), wait_until_open, gate_.get()); r != 0) {
    gate_.reset();
    return failed(op, error{std::error_code(r, cuda_category()), "cuLaunchHostFunc",
                            "the stream cannot be held"});
  }
  auto busy = fence::after(device_, stream_);
  if (!busy) return failed(op, busy.error());
  busy_ = std::move(*busy);
  return {};
}

// Lets the work of hold() end, and waits until it has.
status scenario::release_work() {
  if (!gate_) return {};
  gate_->store(true, std::memory_order_release);
  STILLMAP_RETURN_IF_ERROR(stream_.synchronize());
  gate_.reset();
  busy_.reset();
  return {};
}

status scenario::release(growable_buffer &b, const operation &op) {
  const auto offset = static_cast<std::size_t>(op.offset), size = static_cast<std::size_t>(op.size);
  if (op.what == verb::decommit) {
    return busy_ ? b.decommit(offset, size, *busy_) : b.decommit(offset, size);
  }
  if (size > b.size()) {
    const operation_scope scope("shrink");
    return make_error(errc::invalid_argument, "the buffer is smaller", size, b.size(),
                      error_unit::bytes);
  }
  STILLMAP_RETURN_IF_ERROR(b.resize(b.size() - size));
  return busy_ ? b.shrink_to_fit(*busy_) : b.shrink_to_fit();
}

outcome<void> scenario::perform(const operation &op) {
  const auto offset = static_cast<std::size_t>(op.offset), size = static_cast<std::size_t>(op.size);
  if (op.what == verb::hold) return hold(op);
  if (op.what == verb::release) {
    STILLMAP_RETURN_IF_ERROR(done(op, release_work()));
    device_.space().collect(true);
    return {};
  }

  const bool may_make = op.what == verb::grow || op.what == verb::commit;
  STILLMAP_ASSIGN_OR_RETURN(growable_buffer *const found,
                            may_make ? find_or_make(op, op.name, reserve_) : find(op, op.name));
  growable_buffer &b = *found;
  switch (op.what) {
    case verb::grow:
      return done(op, b.resize(size > SIZE_MAX - b.size() ? SIZE_MAX : b.size() + size, stream_));
    case verb::commit:
      return done(op, b.commit(offset, size, stream_));
    case verb::shrink:
    case verb::decommit:
      return done(op, release(b, op));
    case verb::alias:
    case verb::fork:
      if (buffers_.contains(op.other)) {
        return fail(exit_usage,
                    at_operation(op, fmt::format("there is a buffer '{}' already", op.other)));
      }
      return add(op, op.other,
                 op.what == verb::fork ? b.fork()
                                       : b.alias(offset, size, static_cast<std::size_t>(op.times)));
    case verb::write:
      return done(op, b.make_writable(offset, size, stream_));
    case verb::splice: {
      STILLMAP_ASSIGN_OR_RETURN(growable_buffer *const to, find(op, op.other));
      const auto there = static_cast<std::size_t>(op.to_offset);
      return done(op, busy_ ? b.splice(offset, size, *to, there, *busy_)
                            : b.splice(offset, size, *to, there));
    }
    case verb::drop: {
      if (busy_) STILLMAP_RETURN_IF_ERROR(done(op, b.close(*busy_)));
      buffers_.erase(op.name);
      return {};
    }
    case verb::hold:
    case verb::release:
      break;
  }
  return {};
}

}  // namespace stillmap::tool
