// Checks that every block keeps its bytes from allocation to free: writes patterns on the block's
// stream and reads them back before the free, behind all queued work. Neither waits for the device,
// so a block or page that is reused too early is detected.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::replay {

// `pages`: the first and last bytes of every block and the bytes around each page boundary in it,
// which detects any page that was moved, lost or shared, with a thousandth of the writes.
// `bytes`: all bytes.
enum class check_depth { pages, bytes };

class block_checker {
 public:
  // `streams`: all that blocks are used on; they outlive this. The context is current throughout.
  // Errors: the driver's (pinned memory).
  static result<std::unique_ptr<block_checker>> create(const device &d,
                                                       std::span<const stream_ref> streams,
                                                       std::uint32_t slots, check_depth depth);
  block_checker(const block_checker &) = delete;
  ~block_checker();

  // Errors, each: a byte was wrong, with the block and the offset; the driver's.
  status allocated(std::uint32_t slot, void *at, std::uint64_t bytes, std::uint32_t stream);
  status used(std::uint32_t slot, std::uint32_t stream);
  status before_free(std::uint32_t slot);
  status finish();  // compares what was read back

  std::uint64_t bytes_checked() const { return bytes_checked_; }

 private:
  struct block {
    std::uint64_t at = 0, bytes = 0, serial = 0;
    std::uint32_t stream = 0;
    std::vector<std::uint32_t> uses;
  };
  struct read_back {
    std::uint64_t serial, bytes_of_block, offset;
    std::size_t in_arena, length;
    std::uint32_t stream;
  };

  block_checker(const device &d, std::span<const stream_ref> streams, std::uint32_t slots,
                check_depth depth, void *arena)
      : device_(d),
        streams_(streams.begin(), streams.end()),
        blocks_(slots),
        depth_(depth),
        arena_(static_cast<unsigned char *>(arena)) {}
  template <class Body>
  status each_part(const block &b, Body &&body);
  result<std::size_t> room(std::size_t bytes);
  status read(const block &b, std::uint32_t stream);

  device device_;
  std::vector<stream_ref> streams_;
  std::vector<block> blocks_;
  check_depth depth_;
  unsigned char *arena_ = nullptr;
  std::size_t used_ = 0;
  std::vector<read_back> pending_;
  std::uint64_t serial_ = 0, bytes_checked_ = 0;
};

}  // namespace stillmap::replay
