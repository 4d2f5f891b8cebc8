#include "stillmap/vmm/page.h"

namespace stillmap {
namespace {

std::uint64_t next_page_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

page::page(page_owner &owner, physical_handle handle, std::size_t bytes,
           physical_properties properties, bool imported)
    : id_(next_page_id()),
      handle_(handle),
      bytes_(bytes),
      properties_(properties),
      imported_(imported),
      owner_(&owner) {}

void ledger_page_ptr::drop() noexcept {
  page *const p = std::exchange(page_, nullptr);
  if (p != nullptr && p->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    p->owner_->give_back(p);
  }
}

page_ptr::page_ptr(ledger_page_ptr share)
    : home_(share ? share.page_->owner_->share() : nullptr), share_(std::move(share)) {}

void page_ptr::retire(const fence &idle) {
  if (!share_) return;
  if (!idle.trivially_passed()) share_.page_->owner_->add_fence(*share_.page_, idle);
  share_ = ledger_page_ptr();
}

void page_ptr::set_imported(bool imported) const {
  share_.page_->imported_.store(imported, std::memory_order_relaxed);
}

}  // namespace stillmap
