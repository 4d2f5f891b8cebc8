// Receives one data channel's chunks into device memory, at the destination.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/common/batch_copier.h"
#include "stillmap/checkpoint/common/host_memory.h"
#include "stillmap/checkpoint/migration/internal/destination_memory.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/transport.h"
#include "stillmap/checkpoint/snapshot/chunk_digests.h"

namespace stillmap::migration {

// Uses two buffers: one receives while the other is copied to the device. Contents are verified a
// few dozen MiB at a time, so that little is left to verify when a round ends.
// Threads: externally synchronised. The destructor waits for the copies.
class chunk_receiver {
 public:
  // `read_back`: verifies contents in device memory, if the device can compute digests. Otherwise
  // contents are verified as they arrive.
  // Errors: the driver's.
  static result<chunk_receiver> create(const device &d, destination_memory &into,
                                       std::uint32_t chunk_bytes, const image::digest_key &key,
                                       bool read_back);
  chunk_receiver(chunk_receiver &&) noexcept = default;
  chunk_receiver &operator=(chunk_receiver &&) = delete;
  ~chunk_receiver();

  // Receives the rest of a message that begins with `h`. On a channel without encryption no digest
  // comes along: the digest of what has arrived is computed, and the seal compares it.
  // Errors: corrupt (not contents; no such chunk; more chunks in a round than the layout has), as
  //         receiving, as creating pages, the driver's.
  status take(channel &from, const header &h, std::chrono::milliseconds timeout);
  // Between the first take() of a round and its end_round().
  bool in_round() const { return round_.has_value(); }
  // Ends a round, and returns its chunks that arrived damaged.
  // Errors: the driver's.
  result<std::vector<std::uint64_t>> end_round();

 private:
  // Keeps the layout of the destination memory unchanged.
  class round_guard {
   public:
    explicit round_guard(destination_memory &of) : of_(&of) {}
    round_guard(round_guard &&o) noexcept : of_(std::exchange(o.of_, nullptr)) {}
    round_guard &operator=(round_guard &&) = delete;
    ~round_guard() {
      if (of_ != nullptr) of_->end_round();
    }

   private:
    destination_memory *of_;
  };
  struct received_chunk {
    std::uint64_t number;
    virtual_range at;
    image::digest digest;  // without `expected`: of what has arrived, once it is known
    bool good;
    bool expected;  // the source has sent the digest, which it does on an encrypted channel
  };

  chunk_receiver(destination_memory &into, std::uint32_t chunk_bytes, const image::digest_key &key,
                 checkpoint::batch_copier copier, checkpoint::host_memory buffers)
      : into_(&into),
        chunk_bytes_(chunk_bytes),
        key_(key),
        copier_(std::move(copier)),
        buffers_(std::move(buffers)) {}
  status receive(channel &from, const header &h, std::chrono::milliseconds timeout);
  status verify();

  destination_memory *into_;
  std::uint32_t chunk_bytes_;
  image::digest_key key_;
  checkpoint::batch_copier copier_;
  checkpoint::host_memory buffers_;
  std::optional<snapshot::chunk_digester> digester_;  // with read_back
  std::size_t buffer_ = 0;
  std::optional<round_guard> round_;
  std::size_t round_chunks_ = 0, max_round_chunks_ = 0;
  std::vector<received_chunk> unverified_;
  std::vector<std::uint64_t> damaged_;
};

}  // namespace stillmap::migration
