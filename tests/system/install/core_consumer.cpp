// A small program that uses the core alone: it grows a buffer and checks its address and contents.
#include <cstddef>
#include <cstdio>
#include <vector>

#include "stillmap/vmm/base/version.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/driver.h"
#include "stillmap/vmm/growable_buffer.h"

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

stillmap::result<bool> grows_in_place() {
  auto device = stillmap::device::open();
  if (!device) return tl::unexpected(device.error());
  auto buffer = stillmap::growable_buffer::create(*device);
  if (!buffer) return tl::unexpected(buffer.error());
  if (auto done = buffer->resize(4 * mib); !done) return tl::unexpected(done.error());
  const auto before = buffer->address();

  const stillmap::driver &driver = device->driver();
  const stillmap::context_guard guard(driver, device->context());
  if (!guard.entered()) return tl::unexpected(guard.entered().error());
  const std::vector<unsigned char> written(4 * mib, 0x5a);
  if (auto done = driver.copy_to_device(before, written.data(), written.size()); !done) {
    return tl::unexpected(done.error());
  }
  if (auto done = buffer->resize(64 * mib); !done) return tl::unexpected(done.error());

  std::vector<unsigned char> read(written.size());
  if (auto done = driver.copy_to_host(read.data(), buffer->address(), read.size()); !done) {
    return tl::unexpected(done.error());
  }
  return buffer->address() == before && read == written && buffer->stats().bytes_copied == 0;
}

}  // namespace

int main() {
  const stillmap::result<bool> kept = grows_in_place();
  if (!kept) {
    std::fprintf(stderr, "core_consumer: %s\n", kept.error().message().c_str());
    return 1;
  }
  std::printf("core_consumer: Stillmap %s: %s\n", STILLMAP_VERSION_STRING,
              *kept ? "ok" : "the contents or the address changed");
  return *kept ? 0 : 1;
}
