// Settings of the simulated machine: the parsed configuration string and the traits of its profile.
// Read-only between two resets. hostcuda/docs/profiles.md
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hostcuda {

// Access rights of a mapping are two bits per device in one 64-bit word; the last pair is the
// host's.
constexpr int kMaxDevices = 31;

enum class schedule_kind { threads, jitter, seeded };

// Limits and defects of a machine. A capability that the real machine advertises but does not
// provide has a member that names the failure.
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
  bool is_integrated = false;  // says that its memory is the host's, as hostcuda's always is
  bool has_peers = true;       // the devices can access each other's memory
};

struct settings {
  profile machine;
  std::string text;  // the effective configuration, in the form hostcuda_reset takes
  bool backed = true;
  bool lazy = false;     // backed; host memory is allocated on first touch
  std::size_t keep = 0;  // bytes of released pages kept resident for each device
  bool strict = true;
  schedule_kind schedule = schedule_kind::threads;
  std::uint64_t seed = 0;
  unsigned jitter_us = 200;
  std::string costs_file;
  bool skip_kernels = false;          // accept kernels without a host function, and do not run them
  bool reuse_stream_handles = false;  // a new stream gets the handle that was destroyed last
  std::string machine_name;           // of a machine with several processes; empty: this one alone
  bool vmm_in_capture = false;        // a global capture allows create, map, unmap and set-access
};

// nullptr until the settings of the environment variable have been read.
inline constinit std::atomic<const settings *> published_settings{nullptr};
const settings &first_settings();

// The current settings. The first call reads the environment variable HOSTCUDA. If its value is
// malformed, the reason is printed on stderr and the default machine is used.
// Cost: one load, because every driver call asks several times.
inline const settings &current_settings() {
  const settings *const s = published_settings.load(std::memory_order_acquire);
  return s != nullptr ? *s : first_settings();
}

// Parses a configuration over the defaults. Returns false and sets *reason when it is malformed.
bool parse_settings(const char *config, settings *out, std::string *reason);

// Replaces the settings, for hostcuda_reset().
// Requires: no other thread is inside the driver.
void replace_settings(const settings &s);

}  // namespace hostcuda
