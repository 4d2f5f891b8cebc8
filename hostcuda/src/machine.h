// The machine being simulated: what the configuration string says, and the traits of its profile.
// Read-only between two resets. docs/hostcuda.md#profiles
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace hostcuda {

// Access rights of a mapping are two bits per device in one 64-bit word; the last pair is the
// host's.
constexpr int kMaxDevices = 31;

enum class schedule_kind { threads, jitter, seeded };

// What a profile is known for. Anything that is a lie of the real machine is named as one.
struct profile {
  std::string name;
  std::string device_name;
  int device_count = 1;
  int driver_version = 13000;
  int compute_major = 9;
  int compute_minor = 0;
  int multiprocessors = 132;
  std::size_t device_memory = 0;
  std::uint64_t mapping_ceiling = 520000;
  std::size_t reservation_cap = 0;  // largest reservation that succeeds, 0: no cap
  bool has_vmm = true;
  bool has_pools = true;
  bool fails_rdma_access = false;  // advertises RDMA, then SetAccess returns 999 (WSL 2)
  bool refuses_fd_pools = false;   // advertises fd pools, then refuses them (WSL 2)
  bool is_mig = false;
  bool has_peers = true;  // the devices reach each other's memory
};

struct settings {
  profile machine;
  std::string text;  // the effective configuration, in the form hostcuda_reset takes
  bool backed = true;
  bool lazy = false;     // backed, and host memory is taken when bytes are first touched
  std::size_t keep = 0;  // bytes of released pages that stay present, for each device
  bool strict = true;
  schedule_kind schedule = schedule_kind::threads;
  std::uint64_t seed = 0;
  unsigned jitter_us = 200;
  std::string costs_file;
};

// The settings now in force. The first call reads the environment variable HOSTCUDA; a string that
// is not understood there is reported on stderr and the default machine is used.
const settings &current_settings();

// Parses a configuration on top of the defaults. Returns false with a reason when not understood.
bool parse_settings(const char *config, settings *out, std::string *reason);

// For hostcuda_reset() only. Requires: no other thread is inside the driver.
void replace_settings(const settings &s);

}  // namespace hostcuda
