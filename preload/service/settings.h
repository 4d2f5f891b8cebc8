// What the program's environment asks of the preload: variables that begin with STILLMAP_PRELOAD_, which
// `stillmap run` sets. docs/programs.md
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/allocators/device_share.h"

namespace stillmap::preload {

enum class allocator_kind : std::uint8_t { stillmap, driver };

struct settings {
  std::size_t limit = SIZE_MAX;  // STILLMAP_PRELOAD_LIMIT: bytes of physical memory on each device
  // STILLMAP_PRELOAD_DEVICE_LIMITS=GPU-01020304-…=HARD:SOFT,…: what the driver enforces, by the device's UUID; a number
  // of bytes, or nothing where there is none. As memory_limits of stillmap.
  struct device_limits {
    std::array<unsigned char, 16> uuid{};
    std::size_t hard = SIZE_MAX, soft = SIZE_MAX;
  };
  std::vector<device_limits> of_devices;
  std::string tag = "program";  // STILLMAP_PRELOAD_TAG: of the memory
  // STILLMAP_PRELOAD_IPC, 1 or 0: whether other processes can map the memory.
  enum class choice { unsaid, no, yes };
  choice ipc = choice::unsaid;
  std::string stats;     // STILLMAP_PRELOAD_STATS: a file, or "-" for stderr; empty: none
  bool control = false;  // STILLMAP_PRELOAD_CONTROL: answer an operator's requests
  std::string
      control_folder;  // its value: a folder for the sockets, or "1" for abstract names (empty)
  // STILLMAP_PRELOAD_ADDRESS, hexadecimal: where the addresses of the first device's memory should begin, and those of
  // each further device's 4 TiB behind. 0: anywhere. With an operator a fixed place by default, so that a program that
  // is started again finds its memory where an image has it.
  std::uint64_t address = 0;
  // STILLMAP_PRELOAD_CONTROL_TIMEOUT, in milliseconds: how long a request waits for the program's calls and work.
  std::chrono::milliseconds control_timeout{10'000};
  // STILLMAP_PRELOAD_ALLOCATOR: driver serves nothing, and counts what the driver serves.
  allocator_kind allocator = allocator_kind::stillmap;
  // STILLMAP_PRELOAD_SHARE=gpu0:60GiB, with STILLMAP_PRELOAD_PRIORITY and _MINIMUM; the maximum is the limit.
  share_settings share{};
};

// Read once, at the first call. A value that cannot be read is reported on stderr, and not used.
const settings &given_settings();

// Of the device with this UUID: the smaller of `limit` and what the driver enforces, and the soft limit.
settings::device_limits limits_of(const std::array<unsigned char, 16> &uuid);

}  // namespace stillmap::preload
