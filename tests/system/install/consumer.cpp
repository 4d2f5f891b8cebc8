// A program of somebody else's, as small as one can be: it grows a buffer and looks whether its
// bytes and its address stayed, has an allocator's memory taken away and given back, and saves and
// restores a buffer. Built by each project in this folder against an installed Stillmap.
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

stillmap::result<bool> sleeps_and_wakes() {
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
  auto sleeper = stillmap::checkpoint::suspender::create(*device);
  if (!sleeper) return tl::unexpected(sleeper.error());
  if (auto done = (*sleeper)->suspend("task"); !done) return tl::unexpected(done.error());
  if (auto done = (*sleeper)->resume("task"); !done) return tl::unexpected(done.error());

  std::vector<unsigned char> read(written.size());
  if (auto done = driver.copy_to_host(read.data(), at, read.size()); !done) {
    return tl::unexpected(done.error());
  }
  if (auto done = (*heap)->free(*block); !done) return tl::unexpected(done.error());
  return read == written;
}

// What a buffer held is saved, gone, and brought back at the same address.
stillmap::result<bool> is_saved_and_restored() {
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
    if (!saved) return tl::unexpected(saved.error().why);
  }
  const auto restored = stillmap::snapshot::restore(*device, path);
  ::unlink(path.c_str());
  if (!restored) return tl::unexpected(restored.error().why);
  return restored->memory.tagged(tags.front()).at(0).begin == at;
}

bool says_yes(const char *what, const stillmap::result<bool> &answer) {
  if (answer) {
    std::printf("consumer: %s: %s\n", what, *answer ? "ok" : "the bytes are not what they were");
    return *answer;
  }
  std::fprintf(stderr, "consumer: %s: %s\n", what, answer.error().message().c_str());
  return false;
}

}  // namespace

int main() {
  const bool grown = says_yes("a buffer grows in place", grows_in_place());
  const bool woken = says_yes("a heap sleeps and wakes", sleeps_and_wakes());
  const bool kept = says_yes("memory is saved and restored", is_saved_and_restored());
  return grown && woken && kept ? 0 : 1;
}
