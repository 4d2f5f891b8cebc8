// What the calling convention of the platforms of CUDA distinguishes among the driver's parameters. A wrapper
// with these types passes a call on as it came, whatever CUDA version declared it.
#pragma once

#include <cstdint>

// What the service, a library of its own, uses of the preload. load_service.h
#define STILLMAP_FOR_SERVICE __attribute__((visibility("default")))

namespace stillmap::preload {

using word = std::uint64_t;    // a pointer, a handle, a size, a device address
using number = std::uint32_t;  // 32 bits or less: an int, an enumerator, a CUdevice

struct location {  // CUmemLocation
  number type;
  number id;
};

struct bytes_64 {  // CUipcMemHandle, CUipcEventHandle, CUeglFrame
  unsigned char bytes[64];
};

using driver_code = int;  // CUresult

// The values of CUresult that are named here. Source: cuda.h.
namespace code {
inline constexpr driver_code success = 0;
inline constexpr driver_code invalid_value = 1;
inline constexpr driver_code out_of_memory = 2;
inline constexpr driver_code no_device = 100;
inline constexpr driver_code invalid_context = 201;
inline constexpr driver_code map_failed = 205;
inline constexpr driver_code peer_access_unsupported = 217;
inline constexpr driver_code invalid_handle = 400;
inline constexpr driver_code not_found = 500;
inline constexpr driver_code not_ready = 600;
inline constexpr driver_code not_supported = 801;
inline constexpr driver_code stream_capture_unsupported = 900;
}  // namespace code

}  // namespace stillmap::preload
