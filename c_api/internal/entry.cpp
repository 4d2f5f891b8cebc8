#include "stillmap/c_api/internal/entry.h"

#include <atomic>

#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::c_api {
namespace {

std::atomic<const fork_watch *> first_use{nullptr};

}  // namespace

status note_use() noexcept {
  if (first_use.load(std::memory_order_acquire) != nullptr) return {};
  static undying<fork_watch> watch;
  first_use.store(&*watch, std::memory_order_release);
  return {};
}

bool forked_after_use() noexcept {
  const fork_watch *const used = first_use.load(std::memory_order_acquire);
  return used != nullptr && used->in_child();
}

tl::unexpected<error> made_before_fork() noexcept {
  return make_error(errc::not_supported,
                    "the process was forked after it had used Stillmap: start it by exec instead");
}

}  // namespace stillmap::c_api
