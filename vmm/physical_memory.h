// One physical allocation: created, imported or retained. Pools and buffers use pages; use this to map
// by hand or to pass memory between processes. docs/pages.md#pages
#pragma once

#include <utility>
#include <vector>

#include "stillmap/vmm/base/owned_fd.h"
#include "stillmap/vmm/device.h"

namespace stillmap {

// Owns a descriptor that physical_memory::export_fd returned, which exported_fds() lists.
class exported_fd {
 public:
  exported_fd() = default;
  exported_fd(exported_fd &&o) noexcept = default;
  exported_fd &operator=(exported_fd &&o) noexcept;
  ~exported_fd();

  int get() const noexcept { return fd_.get(); }
  operator const owned_fd &() const noexcept { return fd_; }
  // Gives up ownership. exported_fds() no longer lists the descriptor.
  int release() noexcept;

 private:
  friend class physical_memory;
  explicit exported_fd(owned_fd fd) : fd_(std::move(fd)) {}
  owned_fd fd_;
};

// The open descriptors that physical_memory::export_fd returned, in ascending order. A process that has
// one cannot be checkpointed as a whole.
// Allocates host memory: may throw std::bad_alloc.
// Threads: safe; the owner of a descriptor may close it at any time.
std::vector<int> exported_fds();
// Redirects each of those to the file of `nothing` (an open /dev/null). The descriptor numbers stay
// owned. Returns the number redirected. Requires: `nothing` is open.
std::size_t disarm_exported_fds(const owned_fd &nothing) noexcept;

// Owns one handle. The memory lives until the last handle, mapping and exported copy of it is gone (conformance 45, 52, 53).
class physical_memory {
 public:
  // Units:  bytes, a multiple of the granularity.
  // Errors: invalid_argument (value, limit = granularity), out_of_memory (limit = free),
  //         not_supported (place or handle type).
  // Cost:   one create.
  static result<physical_memory> create(const stillmap::device &d, std::size_t bytes,
                                        physical_properties properties);
  static result<physical_memory> create(const stillmap::device &d, std::size_t bytes);

  // Another handle to the memory mapped at `at` (any interior address).
  // Errors: invalid_argument (no VMM memory is mapped there).
  // Cost:   two calls.
  // Source: conformance 46, 47.
  static result<physical_memory> retain(const stillmap::device &d, device_address at);

  // Imports memory that another process exported. The caller keeps `fd`. The handle does not contain
  // the size: both processes must agree on it, and mapping refuses a wrong one.
  static result<physical_memory> import_fd(const stillmap::device &d, const owned_fd &fd,
                                           std::size_t bytes);

  physical_memory(physical_memory &&o) noexcept;
  physical_memory &operator=(physical_memory &&o) noexcept;
  ~physical_memory();

  std::size_t bytes() const { return bytes_; }
  const physical_properties &properties() const { return properties_; }
  physical_handle handle() const { return handle_; }
  bool imported() const { return imported_; }
  // Imported or retained: another handle to the same memory exists.
  bool shared() const { return imported_ || !counted_; }
  const stillmap::device &device() const { return device_; }

  // Errors: invalid_argument (not created with this handle type). Source: conformance 49.
  result<exported_fd> export_fd() const;

  // Gives up ownership: the caller releases the handle.
  physical_handle release() &&;

 private:
  physical_memory(stillmap::device d, physical_handle h, std::size_t bytes, physical_properties p,
                  bool imported)
      : device_(std::move(d)), handle_(h), bytes_(bytes), properties_(p), imported_(imported) {}
  void destroy() noexcept;

  stillmap::device device_;
  physical_handle handle_ = physical_handle::none;
  std::size_t bytes_ = 0;
  physical_properties properties_;
  bool imported_ = false;
  bool counted_ = true;  // entered in the ledger by this object
};

}  // namespace stillmap
