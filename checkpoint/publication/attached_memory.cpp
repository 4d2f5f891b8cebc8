#include "stillmap/checkpoint/publication/attached_memory.h"

#include <utility>

#include "stillmap/checkpoint/publication/internal/attached_core.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::publication {

attached_memory::attached_memory(std::unique_ptr<attached_core> c) noexcept : core_(std::move(c)) {}
attached_memory::attached_memory(attached_memory &&) noexcept = default;
attached_memory &attached_memory::operator=(attached_memory &&o) noexcept {
  std::swap(core_, o.core_);
  return *this;
}
attached_memory::~attached_memory() = default;

std::uint64_t attached_memory::generation() const {
  return core_->generation();
}
const manifest &attached_memory::published() const {
  return core_->published();
}
const checkpoint::memory_layout &attached_memory::layout() const {
  return core_->memory().layout();
}
const stillmap::device &attached_memory::device() const {
  return core_->memory().device();
}
std::size_t attached_memory::private_bytes() const {
  return core_->private_bytes();
}
std::size_t attached_memory::shared_bytes() const {
  return core_->shared_bytes();
}

status attached_memory::make_writable(virtual_range range, stream_ref stream) {
  return with_host_memory("attached_memory::make_writable",
                          [&] { return core_->make_writable(range, stream); });
}

status attached_memory::release(const fence &idle) {
  const operation_scope scope("attached_memory::release");
  return core_->release(idle);
}

}  // namespace stillmap::publication
