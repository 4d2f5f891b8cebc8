// The part of device_vector that does not depend on the element type: appends, inserts and reads bytes
// on one stream, and gathers small appends in pinned host memory. Internal to device_vector; docs/buffers.md#device-vector
#pragma once

#include <array>
#include <cstring>

#include "stillmap/vmm/growable_buffer.h"

namespace stillmap::detail {

class byte_vector {
 public:
  static result<byte_vector> create(const device &d, buffer_options options, stream_ref stream,
                                    std::size_t staging_bytes);
  byte_vector(byte_vector &&other) noexcept;
  byte_vector &operator=(byte_vector &&other) noexcept;
  ~byte_vector();

  std::size_t size() const { return flushed_ + staged_; }  // staged bytes included
  const growable_buffer &buffer() const { return buffer_; }
  growable_buffer &buffer() { return buffer_; }
  stream_ref stream() const { return stream_; }
  status set_stream(stream_ref stream);

  // The hot path: no driver call, no lock, no allocation while the staging half has room.
  status push(const void *from, std::size_t bytes) {
    if (bytes <= room_) {
      std::memcpy(cursor_, from, bytes);
      cursor_ += bytes;
      room_ -= bytes;
      staged_ += bytes;
      return {};
    }
    return push_slow(from, bytes);
  }

  status flush();
  status append(const void *from, std::size_t bytes, bool wait);
  status append_from_device(device_address from, std::size_t bytes, bool wait);
  status assign(const void *from, std::size_t bytes);
  status resize(std::size_t bytes, bool zero);
  status insert(std::size_t at, std::size_t bytes, const void *host, device_address device);
  status erase(std::size_t at, std::size_t bytes);
  status write(std::size_t at, const void *from, std::size_t bytes);
  status read(std::size_t at, void *to, std::size_t bytes);
  status reserve(std::size_t bytes);
  status shrink_to_fit();
  status synchronize();

  static tl::unexpected<error> no_host_memory() noexcept;

 private:
  struct half {
    char *begin = nullptr;
    fence copied;  // its bytes have left
  };

  byte_vector(device d, growable_buffer b, stream_ref s, std::size_t staging_bytes)
      : device_(std::move(d)), buffer_(std::move(b)), stream_(s), half_bytes_(staging_bytes / 2) {}
  status push_slow(const void *from, std::size_t bytes);
  status begin_half();
  template <class Fill>
  status change(std::size_t bytes, std::size_t from, Fill fill);
  void give_back(std::size_t capacity);
  std::size_t grown_by(std::size_t bytes) const;
  status move_up(std::size_t at, std::size_t end, std::size_t by);
  status move_down(std::size_t from, std::size_t end, std::size_t by, bool keep);
  status move_through(device_address scratch, std::size_t to, std::size_t from, std::size_t bytes);
  result<growable_buffer> scratch(std::size_t bytes) const;
  void done_with(growable_buffer &scratch);
  void drop_staging() noexcept;
  device_address at(std::size_t offset) const { return buffer_.address() + offset; }
  const stillmap::driver &driver() const { return device_.driver(); }

  device device_;
  growable_buffer buffer_;
  stream_ref stream_;
  std::size_t half_bytes_;
  std::size_t flushed_ = 0;  // bytes in the buffer, or on their way there on stream_

  char *cursor_ = nullptr;  // where the next staged byte goes
  std::size_t room_ = 0;    // left in the current half and in the buffer's capacity
  std::size_t staged_ = 0;
  std::array<half, 2> halves_{};
  unsigned current_ = 0;
};

}  // namespace stillmap::detail
