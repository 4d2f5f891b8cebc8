#include "stillmap/vmm/memory_quota.h"

#include "stillmap/vmm/base/operation.h"

namespace stillmap {

result<std::uint64_t> memory_quota::available(std::uint64_t bytes) {
  return bytes;
}

status memory_quota::make_room(std::uint64_t bytes) {
  const operation_scope scope("memory_quota::make_room");
  return make_error(errc::not_supported, "the quota has nobody to ask for memory", bytes, 0,
                    error_unit::bytes);
}

std::unique_ptr<reclaimer_registration> memory_quota::add_reclaimer(
    reclaim_kind /*kind*/, std::function<std::uint64_t(std::uint64_t bytes)> /*reclaim*/) {
  return nullptr;
}

result<std::uint64_t> memory_quota::retry_reclaim() {
  return 0;
}

}  // namespace stillmap
