// A device vector that grows to a gigabyte without moving. README.md quotes the region
// [stays].
#include <cstdio>
#include <span>
#include <vector>

// [stays]
#include "stillmap/vmm/device_vector.h"

stillmap::result<bool> stays(const stillmap::device &gpu, std::span<const float> batch, int times) {
  auto values = stillmap::device_vector<float>::create(gpu);
  if (!values) return tl::unexpected(values.error());
  const float *const before = values->data();
  while (times-- > 0) {
    if (auto done = values->append(batch); !done) return tl::unexpected(done.error());
  }
  std::printf("%zu floats at %p\n", values->size(), static_cast<void *>(values->data()));
  return values->data() == before;
}
// [/stays]

int main() {
  const auto gpu = stillmap::device::open();
  const std::vector<float> batch(std::size_t{1} << 22, 1.5F);  // 16 MiB
  const auto stayed = gpu.and_then([&](const auto &d) { return stays(d, batch, 64); });
  if (!stayed) {
    std::fprintf(stderr, "ten_lines: %s\n", stayed.error().message().c_str());
    return 1;
  }
  // On a device without virtual memory management the vector grows by copying.
  std::puts(*stayed ? "the address never changed" : "the address changed");
  return *stayed == gpu->capabilities().vmm ? 0 : 1;
}
