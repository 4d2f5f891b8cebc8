// A source that sends what a byte string says, to a receiver in this process: over in-memory
// channels, one message at a time, each after the previous one has been processed.
//
// The bytes are operations: a channel (its two lowest bits) and a form.
//   raw:     u16 length, bytes as they are
//   message: kind, u64 number, 1 byte (odd: with the digest of zeros), u16 length, body. 0xffff is
//            a chunk's length of zeros. The task, and the session where the receiver has told one,
//            are put in where they belong, or else nothing would get far.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/vmm/device.h"

namespace stillmap::migration {

struct hostile_outcome {
  std::string wrong;  // a failed check of the receiver's messages or of its memory; empty: none
  bool came = false;  // the receiver accepted the task
};
hostile_outcome run_hostile_source(const device &d, std::span<const std::byte> operations);

// Builds such byte strings.
class hostile_script {
 public:
  void message(unsigned on, kind what, std::uint64_t number, bool zeros,
               const std::vector<std::byte> &body);
  void chunk_of_zeros(unsigned on, std::uint64_t number);
  const std::vector<std::byte> &bytes() const { return bytes_; }

 private:
  void put(std::uint64_t n, int bytes);
  std::vector<std::byte> bytes_;
};

}  // namespace stillmap::migration
