#include "stillmap/checkpoint/migration/internal/destination_memory.h"

#include <algorithm>
#include <iterator>
#include <system_error>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

// Pages created and mapped per batch: enough to share a set-access, few enough that the first
// chunks do not wait long.
constexpr std::size_t pages_per_batch = 16;
constexpr const char *layout_in_round = "a new layout arrived during a round";

}  // namespace

status destination_memory::prepare(layout_message l) {
  {
    const lock_guard lock(mutex_);
    STILLMAP_RETURN_IF_ERROR(check_between_rounds(layout_in_round));
  }
  stop_page_thread();
  checkpoint::memory_layout kinds;
  kinds.pages = l.layout.pages;
  const std::size_t pages = kinds.pages.size();
  STILLMAP_ASSIGN_OR_RETURN(auto factory, checkpoint::page_factory::create(device_, kinds));
  STILLMAP_RETURN_IF_ERROR(reserve(std::move(l)));
  try {
    page_thread_ =
        start_thread([this, pages, factory = std::move(factory),
                      operation = operation_scope::current()](const std::stop_token &stop) mutable {
          const operation_scope scope(operation);
          create_pages(std::move(factory), pages, stop);
        });
  } catch (const std::system_error &e) {
    return fail_pages(make_system_error(e.code().value(), "no thread could be created").value());
  } catch (const std::bad_alloc &) {
    return fail_pages(host_out_of_memory().value());
  }
  return {};
}

// No more pages will be created.
status destination_memory::fail_pages(const error &why) noexcept {
  const lock_guard lock(mutex_);
  page_status_ = tl::unexpected(why);
  pages_changed_.notify_all();
  return page_status_;
}

status destination_memory::check_between_rounds(const char *otherwise) const {
  if (rounds_ == 0) return {};
  return make_error(errc::corrupt, otherwise, rounds_, 0, error_unit::items);
}

// Addresses come first: they may be in use. Those of the previous layout are released and reserved
// again.
status destination_memory::reserve(layout_message l) {
  STILLMAP_RETURN_IF_ERROR(checkpoint::check(l.layout, device_.capabilities().page_bytes));
  STILLMAP_RETURN_IF_ERROR(checkpoint::can_hold(device_, l.layout));
  if (max_bytes_ != 0 && l.layout.bytes() > max_bytes_) {
    return make_error(errc::out_of_memory, "the task is larger than this receiver accepts",
                      l.layout.bytes(), max_bytes_, error_unit::bytes);
  }
  std::size_t bytes = 0;
  for (const auto &p : l.layout.pages) {
    if (p.bytes % chunk_bytes_ != 0) {
      return make_error(errc::corrupt, "a page is not a multiple of the chunk size", p.bytes,
                        chunk_bytes_, error_unit::bytes);
    }
    bytes += p.bytes;
  }
  const lock_guard lock(mutex_);
  STILLMAP_RETURN_IF_ERROR(check_between_rounds(layout_in_round));
  memory_.reset();
  staging_.reset();
  std::map<std::uint32_t, page> before, pages;
  before.swap(pages_);
  STILLMAP_ASSIGN_OR_RETURN(auto memory, checkpoint::restored_memory::reserve(device_, l.layout));
  std::optional<checkpoint::staging_mapping> staging;
  if (bytes != 0) {
    STILLMAP_ASSIGN_OR_RETURN(staging, checkpoint::staging_mapping::reserve(device_, bytes));
  }
  for (std::size_t i = 0; i < l.pages.size(); ++i) {
    page p;
    p.bytes = l.layout.pages[i].bytes;
    if (const auto had = before.find(l.pages[i]);
        had != before.end() && had->second.bytes == p.bytes) {
      p = std::move(had->second);
      p.at = {};
    }
    p.chunks.resize(p.bytes / chunk_bytes_);
    pages.emplace(l.pages[i], std::move(p));
  }
  pages_ = std::move(pages);
  staging_ = std::move(staging);
  numbers_ = std::move(l.pages);
  memory_ = std::move(memory);
  page_status_ = {};
  all_mapped_ = false;
  return {};
}

// The page thread.
void destination_memory::create_pages(checkpoint::page_factory factory, std::size_t pages,
                                      const std::stop_token &stop) noexcept {
  status s = with_host_memory([&]() -> status {
    for (std::size_t i = 0; i < pages && !stop.stop_requested(); i += pages_per_batch) {
      STILLMAP_RETURN_IF_ERROR(create_batch(factory, i, std::min(pages_per_batch, pages - i)));
    }
    return {};
  });
  const lock_guard lock(mutex_);
  if (s && stop.stop_requested()) s = make_error(errc::operation_canceled, "stop requested");
  if (s) {
    s = with_host_memory([&]() STILLMAP_REQUIRES(mutex_) {
      std::vector<page_ptr> order;
      for (const std::uint32_t n : numbers_) order.push_back(pages_.at(n).memory);
      return memory_->map(order);
    });
  }
  page_status_ = s;
  all_mapped_ = s.has_value();
  pages_changed_.notify_all();
}

status destination_memory::create_batch(checkpoint::page_factory &factory, std::size_t first,
                                        std::size_t count) {
  std::vector<page_ptr> batch(count);
  checkpoint::staging_mapping *staging = nullptr;  // used by this thread only, while it runs
  {
    const lock_guard lock(mutex_);
    staging = &*staging_;
    for (std::size_t i = 0; i < count; ++i) batch[i] = pages_.at(numbers_[first + i]).memory;
  }
  for (std::size_t i = 0, end = 0; i < count; i = end) {
    end = i + 1;
    if (batch[i]) continue;
    while (end < count && !batch[end]) ++end;
    STILLMAP_ASSIGN_OR_RETURN(auto made, factory.make(first + i, end - i));
    std::move(made.begin(), made.end(), &batch[i]);
  }
  STILLMAP_RETURN_IF_ERROR(staging->add(batch));
  const lock_guard lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) {
    page &p = pages_.at(numbers_[first + i]);
    p.memory = std::move(batch[i]);
    p.at = staging->at()[first + i];
  }
  pages_changed_.notify_all();
  return {};
}

void destination_memory::stop_page_thread() {
  page_thread_.request_stop();
  if (page_thread_.joinable()) page_thread_.join();
}

bool destination_memory::prepared() const {
  const lock_guard lock(mutex_);
  return memory_.has_value();
}

result<std::size_t> destination_memory::begin_round() {
  const lock_guard lock(mutex_);
  if (!memory_) return make_error(errc::corrupt, "contents arrived before a layout");
  if (rounds_closed_) return make_error(errc::corrupt, "contents arrived after the commit");
  ++rounds_;
  std::size_t chunks = 0;
  for (const auto &[number, p] : pages_) chunks += p.chunks.size();
  return chunks;
}

void destination_memory::end_round() {
  const lock_guard lock(mutex_);
  --rounds_;
}

status destination_memory::close_rounds() {
  const lock_guard lock(mutex_);
  STILLMAP_RETURN_IF_ERROR(check_between_rounds("a commit arrived during a round"));
  rounds_closed_ = true;
  return {};
}

std::optional<std::pair<destination_memory::page *, std::uint32_t>> destination_memory::find(
    std::uint64_t chunk) {
  const auto p = pages_.find(static_cast<std::uint32_t>(chunk >> 32));
  const auto index = static_cast<std::uint32_t>(chunk);
  if (p == pages_.end() || index >= p->second.chunks.size()) return std::nullopt;
  return std::pair{&p->second, index};
}

result<virtual_range> destination_memory::range_of(std::uint64_t chunk) {
  unique_lock lock(mutex_);
  const auto found = find(chunk);
  if (!found) return make_error(errc::corrupt, "the layout has no such chunk", chunk);
  const auto [p, index] = *found;
  pages_changed_.wait(
      lock, [p = p, this]() STILLMAP_REQUIRES(mutex_) { return bool(p->at) || !page_status_; });
  if (!p->at) return tl::unexpected(page_status_.error());
  p->chunks[index].known = false;
  return virtual_range{p->at + std::size_t{index} * chunk_bytes_, chunk_bytes_};
}

void destination_memory::received(std::uint64_t chunk, const image::digest &d) {
  const lock_guard lock(mutex_);
  if (const auto found = find(chunk)) found->first->chunks[found->second] = {d, true};
}

result<std::vector<std::uint64_t>> destination_memory::compare(
    const std::vector<image::digest> &sealed) const {
  unique_lock lock(mutex_);
  if (!memory_) return make_error(errc::corrupt, "a seal arrived before a layout");
  pages_changed_.wait(lock,
                      [this]() STILLMAP_REQUIRES(mutex_) { return all_mapped_ || !page_status_; });
  if (!page_status_) return tl::unexpected(page_status_.error());
  STILLMAP_RETURN_IF_ERROR(check_between_rounds("a seal arrived during a round"));
  std::size_t all = 0;
  for (const std::uint32_t n : numbers_) all += pages_.at(n).chunks.size();
  if (all != sealed.size()) {
    return make_error(errc::corrupt, "a seal has another number of chunks than the layout",
                      sealed.size(), all, error_unit::items);
  }
  std::vector<std::uint64_t> different;
  auto expected = sealed.begin();
  for (const std::uint32_t n : numbers_) {
    const page &p = pages_.at(n);
    for (std::uint32_t i = 0; i < p.chunks.size(); ++i, ++expected) {
      if (!p.chunks[i].known || p.chunks[i].digest != *expected) {
        different.push_back(chunk_number(n, i));
      }
    }
  }
  return different;
}

checkpoint::restored_memory destination_memory::take() {
  stop_page_thread();
  const lock_guard lock(mutex_);
  checkpoint::restored_memory out = std::move(*memory_);
  memory_.reset();
  staging_.reset();
  pages_.clear();
  numbers_.clear();
  return out;
}

}  // namespace stillmap::migration
