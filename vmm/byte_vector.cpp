#include "stillmap/vmm/byte_vector.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/wait_for_copies.h"

namespace stillmap::detail {
namespace {

// Large enough for copies at full speed, and a small part of the device's memory.
constexpr std::size_t longest_move = std::size_t{64} << 20;

tl::unexpected<error> past_end(std::uint64_t value, std::uint64_t limit) {
  return make_error(errc::invalid_argument, "the position is past the end", value, limit,
                    error_unit::bytes);
}

}  // namespace

result<byte_vector> byte_vector::create(const device &d, buffer_options options, stream_ref stream,
                                        std::size_t staging_bytes) {
  const operation_scope scope("device_vector::create");
  if (staging_bytes < 2) {
    return make_error(errc::invalid_argument, "push_back needs some staging memory", staging_bytes,
                      2, error_unit::bytes);
  }
  STILLMAP_ASSIGN_OR_RETURN(auto buffer, growable_buffer::create(d, std::move(options)));
  return byte_vector(d, std::move(buffer), stream, staging_bytes);
}

byte_vector::byte_vector(byte_vector &&other) noexcept
    : device_(other.device_),
      buffer_(std::move(other.buffer_)),
      stream_(other.stream_),
      half_bytes_(other.half_bytes_),
      flushed_(std::exchange(other.flushed_, 0)),
      cursor_(std::exchange(other.cursor_, nullptr)),
      room_(std::exchange(other.room_, 0)),
      staged_(std::exchange(other.staged_, 0)),
      halves_(std::exchange(other.halves_, {})),
      current_(other.current_) {}

byte_vector &byte_vector::operator=(byte_vector &&other) noexcept {
  if (this != &other) {
    std::destroy_at(this);
    std::construct_at(this, std::move(other));
  }
  return *this;
}

byte_vector::~byte_vector() {
  drop_staging();
}

// Waits for the copies from the pinned memory before it frees the memory.
void byte_vector::drop_staging() noexcept {
  if (halves_[0].begin == nullptr) return;
  const context_guard guard(driver(), device_.context());
  for (half &h : halves_) report_if_failed(h.copied.wait());
  report_if_failed(guard.entered() ? driver().free_host(halves_[0].begin) : guard.entered());
  halves_ = {};
}

status byte_vector::set_stream(stream_ref stream) {
  const operation_scope scope("device_vector::set_stream");
  STILLMAP_RETURN_IF_ERROR(flush());
  STILLMAP_ASSIGN_OR_RETURN(auto queued, fence::after(device_, stream_));
  STILLMAP_RETURN_IF_ERROR(queued.make_wait(device_, stream));
  stream_ = stream;
  return {};
}

status byte_vector::push_slow(const void *from, std::size_t bytes) {
  const operation_scope scope("device_vector::push_back");
  if (bytes > half_bytes_) return append(from, bytes, true);  // an element larger than a batch
  STILLMAP_RETURN_IF_ERROR(flush());
  // Reserves room in the buffer for the whole batch, so that a later flush cannot run out of memory;
  // if that fails, for this element only. An element that the reservation holds must not move it.
  const std::size_t capacity = buffer_.capacity();
  std::size_t batch = half_bytes_;
  const std::size_t reserved = buffer_.reserved();
  if (flushed_ <= reserved && bytes <= reserved - flushed_) {
    batch = std::min(batch, reserved - flushed_);
  }
  status grown = buffer_.reserve(flushed_ + batch, stream_);
  if (!grown) {
    batch = bytes;
    grown = buffer_.reserve(flushed_ + batch, stream_);
  }
  if (!grown) return grown;
  if (status begun = begin_half(); !begun) {
    give_back(capacity);
    return begun;
  }
  room_ = batch;
  return push(from, bytes);
}

status byte_vector::begin_half() {
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  if (halves_[0].begin == nullptr) {
    STILLMAP_ASSIGN_OR_RETURN(auto pinned, driver().allocate_host(half_bytes_ * 2));
    halves_[0].begin = static_cast<char *>(pinned);
    halves_[1].begin = halves_[0].begin + half_bytes_;
  }
  half &h = halves_[current_ ^ 1];
  STILLMAP_RETURN_IF_ERROR(h.copied.wait());
  current_ ^= 1;
  cursor_ = h.begin;
  return {};
}

status byte_vector::flush() {
  const operation_scope scope("device_vector::flush");
  if (staged_ == 0) return {};
  STILLMAP_RETURN_IF_ERROR(buffer_.check_access(access_mode::read_write, flushed_, staged_));
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  half &h = halves_[current_];
  if (status s =
          driver().copy_to_device_async(at(flushed_), cursor_ - staged_, staged_, stream_.get());
      !s) {
    return s;
  }
  flushed_ += staged_;
  staged_ = 0;
  STILLMAP_RETURN_IF_ERROR(buffer_.resize(flushed_, stream_));  // within capacity: no driver call
  auto copied = fence::after(device_, stream_);
  // Without a fence for the half, waits for the stream.
  if (!copied) {
    room_ = 0;
    return wait_for_copies(driver(), stream_);
  }
  h.copied = std::move(*copied);
  return {};
}

std::size_t byte_vector::grown_by(std::size_t bytes) const {
  return bytes > SIZE_MAX - size() ? SIZE_MAX : size() + bytes;  // too large, and refused as that
}

// Changes the size to `bytes` once `fill` has queued what the elements from `from` on consist of. `fill`
// runs with the context current, all elements sent, and room for the new size. Failure: the size and the
// capacity are as they were.
template <class Fill>
status byte_vector::change(std::size_t bytes, std::size_t from, Fill fill) {
  STILLMAP_RETURN_IF_ERROR(flush());
  room_ = 0;
  const std::size_t capacity = buffer_.capacity();
  const std::size_t there = std::min(bytes, capacity);
  if (from < there) {
    STILLMAP_RETURN_IF_ERROR(buffer_.check_access(access_mode::read_write, from, there - from));
  }
  STILLMAP_RETURN_IF_ERROR(buffer_.reserve(bytes, stream_));
  const context_guard guard(driver(), device_.context());
  status filled = guard.entered();
  if (filled) filled = fill();
  if (!filled) {
    give_back(capacity);
    return filled;
  }
  flushed_ = bytes;
  return buffer_.resize(bytes, stream_);  // within capacity: no driver call
}

// After a failure: unmaps what was mapped beyond `capacity`. Where that fails too, it stays as capacity. A
// buffer that has grown by moving stays where it is.
void byte_vector::give_back(std::size_t capacity) {
  const std::size_t now = buffer_.capacity();
  if (now <= capacity || !buffer_.in_place()) return;
  [[maybe_unused]] const status gone = buffer_.decommit(capacity, now - capacity);
}

status byte_vector::append(const void *from, std::size_t bytes, bool wait) {
  const operation_scope scope("device_vector::append");
  if (bytes == 0) return {};
  return change(grown_by(bytes), size(), [&]() -> status {
    STILLMAP_RETURN_IF_ERROR(
        driver().copy_to_device_async(at(flushed_), from, bytes, stream_.get()));
    return wait ? wait_for_copies(driver(), stream_) : status{};
  });
}

status byte_vector::append_from_device(device_address from, std::size_t bytes, bool wait) {
  const operation_scope scope("device_vector::append_from_device");
  if (bytes == 0) return {};
  // If growth moves the buffer, its own elements move too.
  const virtual_range mine{buffer_.address(), size()};
  const bool own = mine.contains(from);
  const std::size_t offset = own ? from - mine.begin : 0;
  return change(grown_by(bytes), size(), [&]() -> status {
    STILLMAP_RETURN_IF_ERROR(
        driver().copy_on_device_async(at(flushed_), own ? at(offset) : from, bytes, stream_.get()));
    return wait ? wait_for_copies(driver(), stream_) : status{};
  });
}

// Overwrites the old bytes; until the copy is queued, nothing has changed.
status byte_vector::assign(const void *from, std::size_t bytes) {
  const operation_scope scope("device_vector::assign");
  if (bytes == 0) return resize(0, false);
  return change(bytes, 0, [&]() -> status {
    STILLMAP_RETURN_IF_ERROR(driver().copy_to_device_async(at(0), from, bytes, stream_.get()));
    return wait_for_copies(driver(), stream_);
  });
}

status byte_vector::resize(std::size_t bytes, bool zero) {
  const operation_scope scope("device_vector::resize");
  const std::size_t old = size();
  if (zero && bytes > old) {
    return change(bytes, old,
                  [&] { return driver().set_bytes_async(at(old), 0, bytes - old, stream_.get()); });
  }
  STILLMAP_RETURN_IF_ERROR(flush());
  room_ = 0;
  STILLMAP_RETURN_IF_ERROR(buffer_.reserve(bytes, stream_));
  flushed_ = bytes;
  return buffer_.resize(bytes, stream_);
}

status byte_vector::insert(std::size_t position, std::size_t bytes, const void *host,
                           device_address from) {
  const operation_scope scope("device_vector::insert");
  if (position > size()) return past_end(position, size());
  if (bytes == 0) return {};
  return change(grown_by(bytes), position, [&]() -> status {
    STILLMAP_RETURN_IF_ERROR(move_up(position, flushed_, bytes));
    status s = host != nullptr
                   ? driver().copy_to_device_async(at(position), host, bytes, stream_.get())
                   : driver().copy_on_device_async(at(position), from, bytes, stream_.get());
    if (s && host != nullptr) s = wait_for_copies(driver(), stream_);
    if (!s) report_if_failed(move_down(position + bytes, flushed_ + bytes, bytes, false));
    return s;
  });
}

status byte_vector::erase(std::size_t position, std::size_t bytes) {
  const operation_scope scope("device_vector::erase");
  if (position > size() || bytes > size() - position) {
    return past_end(bytes > SIZE_MAX - position ? SIZE_MAX : position + bytes, size());
  }
  if (bytes == 0) return {};
  if (position + bytes == size()) return resize(position, false);
  return change(size() - bytes, position,
                [&] { return move_down(position + bytes, flushed_, bytes, true); });
}

result<growable_buffer> byte_vector::scratch(std::size_t bytes) const {
  return with_host_memory([&]() -> result<growable_buffer> {
    buffer_options options;
    options.reserve_bytes = bytes;
    options.tag = buffer_.tag();
    options.force_copying = !buffer_.in_place();
    auto made = growable_buffer::create(device_, std::move(options));
    if (!made) return made;
    STILLMAP_RETURN_IF_ERROR(made->reserve(bytes, stream_));
    STILLMAP_RETURN_IF_ERROR(made->resize(bytes, stream_));
    return made;
  });
}

tl::unexpected<error> byte_vector::no_host_memory() noexcept {
  return host_out_of_memory();
}

// Releases scratch memory when the copies through it have completed. If that fails, the destructor
// waits for them and tries again.
void byte_vector::done_with(growable_buffer &scratch) {
  if (const auto idle = fence::after(device_, stream_)) {
    [[maybe_unused]] const status closed = scratch.close(*idle);
  }
}

status byte_vector::move_through(device_address scratch, std::size_t to, std::size_t from,
                                 std::size_t bytes) {
  STILLMAP_RETURN_IF_ERROR(driver().copy_on_device_async(scratch, at(from), bytes, stream_.get()));
  return driver().copy_on_device_async(at(to), scratch, bytes, stream_.get());
}

// Moves [from, end) up by `by` bytes, last chunk first. On a failure, moves the moved chunks back.
status byte_vector::move_up(std::size_t from, std::size_t end, std::size_t by) {
  if (from == end) return {};
  STILLMAP_ASSIGN_OR_RETURN(auto room, scratch(std::min(end - from, longest_move)));
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  status s;
  std::size_t left = end;
  while (s && left > from) {
    const std::size_t n = std::min(room.size(), left - from);
    s = move_through(room.address(), left - n + by, left - n, n);
    if (s) left -= n;
  }
  for (std::size_t back = left; !s && back < end;) {
    const std::size_t n = std::min(room.size(), end - back);
    if (const status u = move_through(room.address(), back, back + by, n); !u) {
      report_background_error(u.error());
      break;
    }
    back += n;
  }
  done_with(room);
  return s;
}

// Moves [from, end) down by `by` bytes, first chunk first, and overwrites the bytes below `from`.
// With `keep`, saves those bytes first if more than one chunk moves, and restores everything on a
// failure.
status byte_vector::move_down(std::size_t from, std::size_t end, std::size_t by, bool keep) {
  if (from == end) return {};
  STILLMAP_ASSIGN_OR_RETURN(auto room, scratch(std::min(end - from, longest_move)));
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const bool saving = keep && end - from > room.size();
  std::optional<growable_buffer> saved;
  status s;
  if (saving) {
    STILLMAP_ASSIGN_OR_RETURN(auto made, scratch(by));
    saved.emplace(std::move(made));
    s = driver().copy_on_device_async(saved->address(), at(from - by), by, stream_.get());
  }
  std::size_t moved = from;
  while (s && moved < end) {
    const std::size_t n = std::min(room.size(), end - moved);
    s = move_through(room.address(), moved - by, moved, n);
    if (s) moved += n;
  }
  if (!s && saving && moved > from) {
    status back;
    for (std::size_t left = moved; back && left > from;) {
      const std::size_t n = std::min(room.size(), left - from);
      back = move_through(room.address(), left - n, left - n - by, n);
      left -= n;
    }
    if (back)
      back = driver().copy_on_device_async(at(from - by), saved->address(), by, stream_.get());
    report_if_failed(back);
  }
  if (saved) done_with(*saved);
  done_with(room);
  return s;
}

status byte_vector::write(std::size_t position, const void *from, std::size_t bytes) {
  if (position > size() || bytes > size() - position) {
    return past_end(position, size());
  }
  STILLMAP_RETURN_IF_ERROR(flush());
  STILLMAP_RETURN_IF_ERROR(buffer_.check_access(access_mode::read_write, position, bytes));
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_RETURN_IF_ERROR(driver().copy_to_device_async(at(position), from, bytes, stream_.get()));
  return wait_for_copies(driver(), stream_);
}

status byte_vector::read(std::size_t position, void *to, std::size_t bytes) {
  if (position > size() || bytes > size() - position) {
    return past_end(position, size());
  }
  if (bytes == 0) return {};
  STILLMAP_RETURN_IF_ERROR(flush());
  STILLMAP_RETURN_IF_ERROR(buffer_.check_access(access_mode::read, position, bytes));
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_RETURN_IF_ERROR(driver().copy_to_host_async(to, at(position), bytes, stream_.get()));
  return wait_for_copies(driver(), stream_);
}

status byte_vector::reserve(std::size_t bytes) {
  const operation_scope scope("device_vector::reserve");
  return buffer_.reserve(bytes, stream_);
}

status byte_vector::shrink_to_fit() {
  const operation_scope scope("device_vector::shrink_to_fit");
  STILLMAP_RETURN_IF_ERROR(flush());
  room_ = 0;
  STILLMAP_ASSIGN_OR_RETURN(auto idle, fence::after(device_, stream_));
  return buffer_.shrink_to_fit(idle);
}

status byte_vector::synchronize() {
  const operation_scope scope("device_vector::synchronize");
  STILLMAP_RETURN_IF_ERROR(flush());
  const context_guard guard(driver(), device_.context());
  return guard.entered() ? driver().synchronize_stream(stream_.get()) : guard.entered();
}

}  // namespace stillmap::detail
