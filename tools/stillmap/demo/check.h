// Judges a growth demonstration: whether the buffer grew in place, without copies, with the right
// content. Pure: no driver, no file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "stillmap/vmm/base/units.h"

namespace stillmap::tool {

// The first difference of two contents.
struct byte_difference {
  std::uint64_t offset = 0;
  unsigned source = 0;  // the byte there
  unsigned device = 0;
};

// The first difference of two chunks of equal length that begin at `offset` of their streams.
std::optional<byte_difference> first_difference(std::span<const std::byte> source,
                                                std::span<const std::byte> device,
                                                std::uint64_t offset);

// The observations of a run.
struct observed {
  std::uint64_t bytes = 0;    // from the source
  std::uint64_t growths = 0;  // times memory was added

  // Content: read back from the device and compared.
  std::uint64_t bytes_checked = 0;
  std::optional<byte_difference> differs;
  std::string source_trouble;   // the source changed before it was read again
  bool digests_differ = false;  // for a source that can be read only once

  // Address: after the first growth and at the end, and how often it changed, as observed and as the
  // buffer reports.
  device_address first_address, last_address;
  std::uint64_t moves_seen = 0;
  std::uint64_t relocations = 0;

  // Bytes copied from device to device: as counted at our driver calls, by the buffer, and by the
  // driver, if it counts them.
  std::uint64_t copied_by_calls = 0;
  std::uint64_t copied_by_buffer = 0;
  std::optional<std::uint64_t> copied_by_driver;

  std::uint64_t moves() const { return std::max(moves_seen, relocations); }
  bool moved() const { return moves() != 0 || first_address != last_address; }
  std::uint64_t copied() const { return copied_by_driver.value_or(copied_by_calls); }
};

struct verdict {
  bool ok = false;
  std::string line;  // the last line of the command: "stillmap: ok: ..." or "stillmap: FAILED: ..."
};
verdict judge(const observed &o);

}  // namespace stillmap::tool
