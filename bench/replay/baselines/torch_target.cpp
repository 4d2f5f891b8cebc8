// Peer: PyTorch's own caching allocator, out of the library that tools/torch_peer/build makes.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "bench/replay/baselines/torch_peer.h"
#include "bench/replay/internal/failure.h"
#include "bench/replay/replay_target.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {
namespace {

// Never closed: PyTorch keeps its allocator until the process ends.
result<const stillmap_torch_peer *> load_torch_peer() {
  const char *const path = ::secure_getenv(torch_peer_variable);
  if (path == nullptr || *path == '\0') {
    return fail(errc::not_supported,
                fmt::format("{} is not set: it names the library that tools/torch_peer/build makes "
                            "of an installed PyTorch",
                            torch_peer_variable));
  }
  void *const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char *const why = ::dlerror();
    return fail(errc::not_supported, fmt::format("{}={} cannot be loaded: {}", torch_peer_variable,
                                                 path, why != nullptr ? why : "no reason given"));
  }
  const auto table = reinterpret_cast<stillmap_torch_peer_table_function>(
      ::dlsym(library, STILLMAP_TORCH_PEER_SYMBOL));
  if (table == nullptr) {
    return fail(errc::not_supported,
                fmt::format("{}={} has no function {}: it is not what tools/torch_peer/build makes",
                            torch_peer_variable, path, STILLMAP_TORCH_PEER_SYMBOL));
  }
  const stillmap_torch_peer *const peer = table();
  if (peer->version != STILLMAP_TORCH_PEER_VERSION) {
    return fail(errc::not_supported,
                fmt::format("{}={} has version {} of the interface, this program {}: run "
                            "tools/torch_peer/build again",
                            torch_peer_variable, path, peer->version, STILLMAP_TORCH_PEER_VERSION));
  }
  return peer;
}

class torch_target final : public replay_target {
 public:
  explicit torch_target(const stillmap_torch_peer &peer) : peer_(peer) {}
  ~torch_target() override { report_if_failed(outcome_of(peer_.close(), "torch::close")); }

  result<void *> allocate(std::size_t bytes, stream_ref on) override {
    void *at = nullptr;
    STILLMAP_RETURN_IF_ERROR(
        outcome_of(peer_.allocate(&at, bytes, on.get()), "torch::allocate", bytes));
    return at;
  }
  status free(void *at) override { return outcome_of(peer_.free(at), "torch::free"); }
  status record_use(void *at, stream_ref on) override {
    return outcome_of(peer_.record_stream(at, on.get()), "torch::record_use");
  }
  std::uint64_t committed_bytes() const override { return stats().reserved_bytes; }
  std::uint64_t peak_committed_bytes() const override { return stats().peak_reserved_bytes; }
  std::optional<std::uint64_t> retries() const override { return stats().retries; }

  status open(int device, const std::string &settings) {
    return outcome_of(peer_.open(device, settings.c_str()), "torch::open");
  }

 private:
  status outcome_of(int code, const char *operation, std::uint64_t bytes = 0) const {
    if (code == STILLMAP_TORCH_PEER_OK) return {};
    const bool out = code == STILLMAP_TORCH_PEER_OUT_OF_MEMORY;
    const error e{make_error_code(out ? errc::out_of_memory : errc::invalid_argument),
                  operation,
                  "PyTorch's allocator failed",
                  bytes,
                  0,
                  error_unit::bytes};
    return tl::unexpected<error>(e.with({.cause = peer_.last_error()}));
  }
  stillmap_torch_peer_stats stats() const {
    stillmap_torch_peer_stats out = {};
    report_if_failed(outcome_of(peer_.stats(&out), "torch::stats"));
    return out;
  }

  const stillmap_torch_peer &peer_;
};

result<std::unique_ptr<replay_target>> open_torch(const device &d, const target_options &o,
                                                  bool expanding) {
  STILLMAP_ASSIGN_OR_RETURN(const stillmap_torch_peer *const peer, load_torch_peer());
  // As PYTORCH_CUDA_ALLOC_CONF has them. What is not named gets its default.
  std::string settings = expanding ? "expandable_segments:True" : "expandable_segments:False";
  if (o.max_split_size != 0) {
    settings += fmt::format(",max_split_size_mb:{}", divide_up(o.max_split_size, 1 << 20));
  }
  if (o.roundup_power2_divisions != 0) {
    settings += fmt::format(",roundup_power2_divisions:{}", o.roundup_power2_divisions);
  }
  auto made = std::make_unique<torch_target>(*peer);
  STILLMAP_RETURN_IF_ERROR(made->open(d.ordinal(), settings));
  return made;
}

}  // namespace

result<std::unique_ptr<replay_target>> make_torch(const device &d, const target_options &o) {
  return open_torch(d, o, false);
}

result<std::unique_ptr<replay_target>> make_torch_expanding(const device &d,
                                                            const target_options &o) {
  if (!d.capabilities().vmm) {
    return fail(errc::not_supported,
                "this device has no virtual memory management: segments cannot expand");
  }
  return open_torch(d, o, true);
}

}  // namespace stillmap::replay
