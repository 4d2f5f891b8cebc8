#include "stillmap/checkpoint/snapshot/internal/host_kernel.h"

#include <hostcuda/hostcuda.h>

#include <atomic>
#include <cstring>

#include "stillmap/checkpoint/image/digest.h"

namespace stillmap::snapshot {
namespace {

std::atomic<decltype(&hostcuda_access)> access_on_host{nullptr};

template <class T>
T param(const hostcuda_launch *launch, std::size_t i) {
  T value;
  std::memcpy(&value, launch->params[i], sizeof value);
  return value;
}

// As kernels/chunk_digests.cu says, by one thread.
void on_host(const hostcuda_launch *launch) {
  const auto reach = access_on_host.load();
  const auto count = param<std::uint64_t>(launch, 1);
  const auto *const list =
      static_cast<const std::uint64_t *>(reach(param<std::uint64_t>(launch, 0), count * 16, 0));
  auto *const to = static_cast<std::byte *>(reach(param<std::uint64_t>(launch, 4), count * 16, 1));
  for (std::uint64_t c = 0; list != nullptr && to != nullptr && c < count; ++c) {
    const std::uint64_t bytes = list[2 * c + 1];
    const auto *const at = static_cast<const std::byte *>(reach(list[2 * c], bytes, 0));
    if (at == nullptr) return;
    const image::digest d = image::digest_of_contents({at, static_cast<std::size_t>(bytes)});
    std::memcpy(to + 16 * c, d.bytes.data(), d.bytes.size());
  }
}

}  // namespace

void offer_host_kernel(const driver &drv) noexcept {
  using registering = decltype(&hostcuda_register_kernel);
  const auto offer = reinterpret_cast<registering>(drv.symbol("hostcuda_register_kernel"));
  const auto reach = reinterpret_cast<decltype(&hostcuda_access)>(drv.symbol("hostcuda_access"));
  if (offer == nullptr || reach == nullptr) return;
  access_on_host = reach;
  const std::size_t sizes[] = {8, 8, 8, 8, 8};
  [[maybe_unused]] const CUresult known = offer(kernel_name, on_host, 5, sizes);
}

}  // namespace stillmap::snapshot
