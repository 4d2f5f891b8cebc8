// A program of somebody else's, as small as one can be: it grows a buffer and looks whether its
// bytes and its address stayed. Built by each project in this folder against an installed Stillmap.
#include <cstdio>
#include <vector>

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

  const stillmap::driver &driver = device->drv();
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
  const auto grown = grows_in_place();
  if (!grown) {
    std::fprintf(stderr, "consumer: %s\n", grown.error().message().c_str());
    return 1;
  }
  std::puts(*grown ? "consumer: ok" : "consumer: the buffer moved or lost its bytes");
  return *grown ? 0 : 1;
}
