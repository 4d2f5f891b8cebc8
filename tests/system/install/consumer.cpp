// A small program that uses several libraries: it suspends and resumes an allocator's memory, and saves
// and restores a buffer. Each project in this folder builds it, or core_consumer.cpp.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/driver.h"
#include "stillmap/vmm/growable_buffer.h"

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

stillmap::result<bool> suspends_and_resumes() {
  auto device = stillmap::device::open();
  if (!device) return tl::unexpected(device.error());
  stillmap::caching_allocator_options options;
  options.tag = "task";
  auto heap = stillmap::caching_allocator::create(*device, options);
  if (!heap) return tl::unexpected(heap.error());
  const auto block = (*heap)->allocate(3 * mib);
  if (!block) return tl::unexpected(block.error());
  const stillmap::device_address at(reinterpret_cast<std::uintptr_t>(*block));

  const stillmap::driver &driver = device->driver();
  const stillmap::context_guard guard(driver, device->context());
  if (!guard.entered()) return tl::unexpected(guard.entered().error());
  const std::vector<unsigned char> written(3 * mib, 0xa5);
  if (auto done = driver.copy_to_device(at, written.data(), written.size()); !done) {
    return tl::unexpected(done.error());
  }
  auto suspender = stillmap::checkpoint::suspender::create(*device);
  if (!suspender) return tl::unexpected(suspender.error());
  if (auto done = (*suspender)->suspend("task"); !done) return tl::unexpected(done.error());
  if (auto done = (*suspender)->resume("task"); !done) return tl::unexpected(done.error());

  std::vector<unsigned char> read(written.size());
  if (auto done = driver.copy_to_host(read.data(), at, read.size()); !done) {
    return tl::unexpected(done.error());
  }
  if (auto done = (*heap)->free(*block); !done) return tl::unexpected(done.error());
  return read == written;
}

// A buffer is saved, destroyed, and restored at the same address.
stillmap::result<bool> saves_and_restores() {
  const auto device = stillmap::device::open();
  if (!device) return tl::unexpected(device.error());
  const char *const folder = std::getenv("TMPDIR");
  const std::string path = std::string(folder != nullptr ? folder : "/tmp") +
                           "/stillmap-consumer-" + std::to_string(::getpid()) + ".smi";
  const std::vector<std::string> tags{"weights"};
  stillmap::device_address at;
  {
    stillmap::buffer_options options;
    options.tag = tags.front();
    auto buffer = stillmap::growable_buffer::create(*device, options);
    if (!buffer) return tl::unexpected(buffer.error());
    if (auto done = buffer->resize(3 * mib); !done) return tl::unexpected(done.error());
    at = buffer->address();
    const auto saved = stillmap::snapshot::save(*device, tags, path);
    if (!saved) return tl::unexpected(saved.error());
  }
  const auto restored = stillmap::snapshot::restore(*device, path);
  ::unlink(path.c_str());
  if (!restored) return tl::unexpected(restored.error());
  return restored->memory.tagged(tags.front()).at(0).begin == at;
}

bool report(const char *what, const stillmap::result<bool> &kept) {
  if (kept) {
    std::printf("consumer: %s: %s\n", what, *kept ? "ok" : "the contents or the address changed");
    return *kept;
  }
  std::fprintf(stderr, "consumer: %s: %s\n", what, kept.error().message().c_str());
  return false;
}

}  // namespace

int main() {
  const bool resumed = report("a heap is suspended and resumed", suspends_and_resumes());
  const bool restored = report("a buffer is saved and restored", saves_and_restores());
  return resumed && restored ? 0 : 1;
}
