#include "stillmap/checkpoint/common/staging_mapping.h"

#include <algorithm>
#include <cstddef>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {

result<staging_mapping> staging_mapping::create(const device &d, std::span<const page_ptr> pages) {
  const operation_scope scope("staging_mapping::create");
  std::size_t bytes = 0;
  for (const page_ptr &p : pages) bytes += p->bytes();
  auto out = reserve(d, bytes);
  if (out) STILLMAP_RETURN_IF_ERROR(out->add(pages));
  return out;
}

result<staging_mapping> staging_mapping::reserve(const device &d, std::size_t bytes) {
  const operation_scope scope("staging_mapping::reserve");
  STILLMAP_ASSIGN_OR_RETURN(reservation addresses, reservation::create(d, bytes));
  return staging_mapping(d, std::move(addresses));
}

status staging_mapping::add(std::span<const page_ptr> pages) {
  const operation_scope scope("staging_mapping::add");
  remap_plan plan({{on_device(device_.ordinal()), access_mode::read_write}});
  std::vector<device_address> at;
  std::size_t end = mapped_;
  for (const page_ptr &p : pages) {
    at.push_back(addresses_.range().begin + end);
    plan.map(at.back(), p);
    end += p->bytes();
  }
  at_.resize(at_.size() + at.size());
  if (const status s = with_host_memory([&] { return device_.space().apply(std::move(plan)); });
      !s) {
    at_.resize(at_.size() - at.size());
    return s;
  }
  std::copy(at.begin(), at.end(), at_.end() - static_cast<std::ptrdiff_t>(at.size()));
  mapped_ = end;
  return {};
}

staging_mapping &staging_mapping::operator=(staging_mapping &&o) noexcept {
  clear();
  device_ = o.device_;
  addresses_ = std::move(o.addresses_);
  at_ = std::move(o.at_);
  mapped_ = std::exchange(o.mapped_, 0);
  return *this;
}

// By retiring: where the driver refuses to unmap now, the ledger tries again later.
void staging_mapping::clear() noexcept {
  const std::size_t bytes = std::exchange(mapped_, 0);
  at_.clear();
  if (bytes == 0) return;
  report_if_failed(with_host_memory("staging_mapping::clear", [&]() -> status {
    device_.space().retire_again(addresses_.block(), {addresses_.range().begin, bytes}, fence());
    device_.space().collect();
    return {};
  }));
}

}  // namespace stillmap::checkpoint
