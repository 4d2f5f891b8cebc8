#include "stillmap/vmm/physical_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap {

namespace {

// Static objects of the program may own descriptors.
struct exports {
  stillmap::mutex mutex;
  std::set<int> fds STILLMAP_GUARDED_BY(mutex);
};
exports &all_exports() {
  static undying<exports> all;
  return *all;
}

}  // namespace

exported_fd::~exported_fd() {
  if (fd_.get() < 0) return;
  // Under the lock: once it is closed, another thread may get the number.
  const lock_guard lock(all_exports().mutex);
  all_exports().fds.erase(fd_.get());
  fd_ = owned_fd();
}

exported_fd &exported_fd::operator=(exported_fd &&o) noexcept {
  if (this != &o) {
    const exported_fd before(std::exchange(fd_, std::move(o.fd_)));
  }
  return *this;
}

int exported_fd::release() noexcept {
  if (fd_.get() < 0) return -1;
  const lock_guard lock(all_exports().mutex);
  all_exports().fds.erase(fd_.get());
  return fd_.release();
}

std::vector<int> exported_fds() {
  const lock_guard lock(all_exports().mutex);
  return {all_exports().fds.begin(), all_exports().fds.end()};
}

std::size_t disarm_exported_fds(const owned_fd &nothing) noexcept {
  const lock_guard lock(all_exports().mutex);
  auto &fds = all_exports().fds;
  const std::size_t n = fds.size();
  for (const int fd : fds) ::dup3(nothing.get(), fd, O_CLOEXEC);  // onto an open one: succeeds
  fds.clear();
  return n;
}

result<physical_memory> physical_memory::create(const stillmap::device &d, std::size_t bytes) {
  physical_properties own;
  own.location = on_device(d.ordinal());
  return create(d, bytes, own);
}

result<physical_memory> physical_memory::create(const stillmap::device &d, std::size_t bytes,
                                                physical_properties properties) {
  const operation_scope scope("physical_memory::create");
  if (!d.capabilities().vmm) {
    return make_error(errc::not_supported, "this device cannot map physical pages");
  }
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  if (bytes == 0 || bytes % d.capabilities().page_bytes != 0) {
    return make_error(errc::invalid_argument, "the size is not a multiple of the granularity",
                      bytes, d.capabilities().page_bytes, error_unit::bytes);
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto handle, d.driver().create_physical(bytes, properties));
  d.space().physical_created(bytes);
  return physical_memory(d, handle, bytes, properties, false);
}

result<physical_memory> physical_memory::retain(const stillmap::device &d, device_address at) {
  const operation_scope scope("physical_memory::retain");
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_ASSIGN_OR_RETURN(const auto bytes, with_host_memory([&]() -> result<std::size_t> {
                              std::size_t n = 0;
                              for (const mapping_record &m : d.space().mappings({at, 1}))
                                n = m.range.bytes;
                              return n;
                            }));
  if (bytes == 0) {
    return make_error(errc::invalid_argument, "nothing of this ledger is mapped at the address",
                      at.value(), 0, error_unit::address);
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto handle, d.driver().retain_physical(at));
  const auto properties = d.driver().properties(handle);
  if (!properties) {
    report_if_failed(d.driver().release_physical(handle));
    return tl::unexpected(properties.error());
  }
  // Another handle to memory the ledger counts already.
  physical_memory m(d, handle, bytes, *properties, false);
  m.counted_ = false;
  return m;
}

result<physical_memory> physical_memory::import_fd(const stillmap::device &d, const owned_fd &fd,
                                                   std::size_t bytes) {
  const operation_scope scope("physical_memory::import_fd");
  if (!d.capabilities().vmm) {
    return make_error(errc::not_supported, "this device cannot map physical pages");
  }
  if (fd.get() < 0) {
    return make_error(errc::invalid_argument, "there is no file descriptor to import");
  }
  if (bytes == 0 || bytes % d.capabilities().page_bytes != 0) {
    return make_error(errc::invalid_argument, "the size is not a multiple of the granularity",
                      bytes, d.capabilities().page_bytes, error_unit::bytes);
  }
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_ASSIGN_OR_RETURN(const auto handle, d.driver().import_fd(fd.get()));
  const auto properties = d.driver().properties(handle);
  if (!properties) {
    report_if_failed(d.driver().release_physical(handle));
    return tl::unexpected(properties.error());
  }
  d.space().physical_created(bytes);
  return physical_memory(d, handle, bytes, *properties, true);
}

result<exported_fd> physical_memory::export_fd() const {
  const operation_scope scope("physical_memory::export_fd");
  if (properties_.exportable != handle_type::posix_fd) {
    return make_error(errc::invalid_argument, "it was not created exportable as an fd");
  }
  if (handle_ == physical_handle::none) {
    return make_error(errc::invalid_argument, "the memory was moved from");
  }
  return with_host_memory([&]() -> result<exported_fd> {
    std::set<int> one{-1};
    auto listed = one.extract(one.begin());
    const context_guard guard(device_.driver(), device_.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    STILLMAP_ASSIGN_OR_RETURN(const auto fd, device_.driver().export_fd(handle_));
    owned_fd owned(fd);
    listed.value() = fd;
    const lock_guard lock(all_exports().mutex);
    all_exports().fds.insert(std::move(listed));
    return exported_fd(std::move(owned));
  });
}

physical_memory::physical_memory(physical_memory &&o) noexcept
    : device_(o.device_),
      handle_(std::exchange(o.handle_, physical_handle::none)),
      bytes_(o.bytes_),
      properties_(o.properties_),
      imported_(o.imported_),
      counted_(o.counted_) {}

physical_memory &physical_memory::operator=(physical_memory &&o) noexcept {
  if (this != &o) {
    destroy();
    device_ = o.device_;
    handle_ = std::exchange(o.handle_, physical_handle::none);
    bytes_ = o.bytes_;
    properties_ = o.properties_;
    imported_ = o.imported_;
    counted_ = o.counted_;
  }
  return *this;
}

physical_memory::~physical_memory() {
  destroy();
}

physical_handle physical_memory::release() && {
  if (counted_ && handle_ != physical_handle::none) device_.space().physical_released(bytes_);
  return std::exchange(handle_, physical_handle::none);
}

void physical_memory::destroy() noexcept {
  const physical_handle handle = std::move(*this).release();
  if (handle == physical_handle::none) return;
  const context_guard guard(device_.driver(), device_.context());
  report_if_failed(guard.entered() ? device_.driver().release_physical(handle) : guard.entered());
}

}  // namespace stillmap
