// A peer of a handoff that does what a byte string says, against send() or receive() in this process.
//
// The first byte is its role: even: the sender, odd: the receiver. Operations follow:
//   word:    0, a step, a value: written into the ownership word after that step of the other side; 255
//            is all ones. A sender's is written at once
//   raw:     3, u16 length, bytes as they are
//   message: 1 or 2, kind, descriptors, u16 length, body. With 1, a hello gets the UUID of the device
//            and its page size, or else nothing would get far
// All messages are in the socket before the other side begins; then the stream ends.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "stillmap/vmm/device.h"

namespace stillmap::handoff {

enum class attached : std::uint8_t {
  nothing,
  word,
  page,
  large_page,
  both_pages,
  null,
  file,
  count
};

struct hostile_outcome {
  std::string wrong;       // a failed check; empty: none
  bool succeeded = false;  // the handoff
};
// `d` holds no other memory, and exports pages.
hostile_outcome run_hostile_peer(const device &d, std::span<const std::byte> bytes);

// Builds such byte strings.
class peer_script {
 public:
  explicit peer_script(role as) { put(as == role::receiver ? 1 : 0, 1); }
  peer_script &message(kind k, attached fds, const std::vector<std::byte> &body = {});
  peer_script &word(int after_step, std::uint8_t value);
  const std::vector<std::byte> &bytes() const { return bytes_; }

 private:
  void put(std::uint64_t n, int bytes);
  std::vector<std::byte> bytes_;
};

}  // namespace stillmap::handoff
