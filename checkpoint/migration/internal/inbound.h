// A channel that brings contents, at the destination. Internal.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stillmap/checkpoint/common/internal/batch_copier.h"
#include "stillmap/checkpoint/common/internal/host_memory.h"
#include "stillmap/checkpoint/migration/internal/incoming.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/transport.h"
#include "stillmap/checkpoint/snapshot/internal/chunk_digests.h"

namespace stillmap::migration {

// Two buffers: one is received while the other is written to the device. What has landed is looked
// at a few dozen MiB at a time, so that little is left to do when a round ends.
//
// Threads: externally synchronised. Nothing is under way on the device when it goes.
class inbound {
 public:
  // `read_back`: by digests that the device makes; where it cannot, and without, what arrives is
  // checked. Errors: the driver's.
  static result<inbound> create(const device &d, incoming &into, std::uint32_t chunk_bytes,
                                bool read_back);
  inbound(inbound &&) noexcept = default;
  inbound &operator=(inbound &&) = delete;
  ~inbound();

  // The rest of a message that begins with `h`. Errors: corrupt (no contents, no such chunk, more
  // in a round than there are), as receiving, as making its page, the driver's.
  status take(channel &from, const header &h, patience wait);
  // A round is over: the chunks of it that did not land as they left. Errors: the driver's.
  result<std::vector<std::uint64_t>> through();

 private:
  // In the middle of a round of `into`, where it is one.
  class round {
   public:
    explicit round(incoming &of) : of_(&of) {}
    round(round &&o) noexcept : of_(std::exchange(o.of_, nullptr)) {}
    round &operator=(round &&) = delete;
    ~round() {
      if (of_ != nullptr) of_->end_round();
    }

   private:
    incoming *of_;
  };
  struct piece {
    std::uint64_t number;
    virtual_range at;
    image::digest digest;
    bool good;
  };

  inbound(incoming &into, std::uint32_t chunk_bytes, checkpoint::transfer by,
          checkpoint::host_memory room)
      : into_(&into), chunk_bytes_(chunk_bytes), by_(std::move(by)), room_(std::move(room)) {}
  status land(channel &from, const header &h, patience wait);
  status look();

  incoming *into_;
  std::uint32_t chunk_bytes_;
  checkpoint::transfer by_;
  checkpoint::host_memory room_;
  std::optional<snapshot::chunk_digester> reads_back_;
  std::size_t buffer_ = 0;
  std::optional<round> round_;
  std::size_t came_ = 0;       // in this round, of at most
  std::size_t chunks_ = 0;     // so many
  std::vector<piece> pieces_;  // not looked at yet
  std::vector<std::uint64_t> bad_;
};

}  // namespace stillmap::migration
