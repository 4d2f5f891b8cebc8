#include "stillmap/checkpoint/suspend/suspender.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "stillmap/checkpoint/common/internal/selection.h"
#include "stillmap/checkpoint/common/internal/wait_idle.h"
#include "stillmap/checkpoint/suspend/internal/backing_store.h"
#include "stillmap/checkpoint/suspend/internal/resumption.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {
namespace {

constexpr std::size_t file_part = std::size_t{16} << 20;

std::string directory_of(const suspend_options &how) {
  if (!how.directory.empty()) return how.directory;
  const char *const usual = std::getenv("TMPDIR");
  return usual != nullptr && *usual != 0 ? usual : "/tmp";
}

std::vector<page_pool *> homes_of(const selection &what) {
  std::vector<page_pool *> out;
  for (const selection::selected_page &p : what.pages) {
    if (std::find(out.begin(), out.end(), p.home.get()) == out.end()) out.push_back(p.home.get());
  }
  return out;
}

// Pages of pools that nobody wants now go back to the device.
void return_free_pages(const selection &what) {
  for (page_pool *const home : homes_of(what)) {
    // Where that fails it is free in its pool all the same.
    if (const auto went = home->trim(); !went) report_background_error(went.error());
  }
}

// What the pools of these pages have of the device. Those that keep nothing have given it back
// before anybody trims them.
std::size_t held_for(const selection &what) {
  std::size_t sum = 0;
  for (const page_pool *const home : homes_of(what)) sum += home->stats().created.bytes();
  return sum;
}

}  // namespace

class suspender::core {
 public:
  core(const device &d, const suspender_options &options, transfer by)
      : device_(d), options_(options), by_(std::move(by)) {}

  ~core() {
    if (away_.empty()) return;
    std::size_t lost = 0;
    for (const auto &[tag, a] : away_) lost += a.told.bytes;
    report_background_error({make_error_code(errc::busy), "suspender::~suspender",
                         "what was suspended is lost", lost});
  }

  result<suspended_tag> suspend(std::string_view tag, const suspend_options &how) {
    const std::lock_guard lock(mutex_);
    if (away_.find(tag) != away_.end()) {
      return make_error(errc::busy, "suspender::suspend", "the tag is suspended already");
    }
    if (status s = wait_until_idle(device_, how.idle); !s) return tl::unexpected(s.error());
    auto what = select(device_, tag, how.imports);
    if (!what) return tl::unexpected(what.error());
    auto kept = make_contents(how, what->bytes);
    if (!kept) return tl::unexpected(kept.error());
    suspension a{{std::string(tag), how.contents, what->places.size(), what->bytes, {}},
                 next_suspension(),
                 std::move(*what),
                 std::move(*kept)};
    const std::size_t held = held_for(a.what);
    status s = a.kept->save(by_, a.what.contents);
    if (s) {
      remap_plan plan({});
      for (const virtual_range r : a.what.ranges) plan.suspend(r, a.id);
      s = device_.space().apply(std::move(plan));
    }
    if (!s) {
      keep(a.kept->give_up());
      return tl::unexpected(s.error());
    }
    return_free_pages(a.what);
    const std::size_t left = held_for(a.what);
    a.told.released = physical_size(held - std::min(held, left));
    return away_.emplace(std::string(tag), std::move(a)).first->second.told;
  }

  result<suspended_tag> resume(std::string_view tag) {
    const std::lock_guard lock(mutex_);
    const auto found = away_.find(tag);
    if (found == away_.end()) {
      return make_error(errc::invalid_argument, "suspender::resume", "the tag is not suspended");
    }
    suspension &a = found->second;
    resumption r(device_, a.what, a.id);
    status s = r.map();
    if (s) {
      s = a.kept->load(by_, r.contents());
      s ? r.finish() : r.undo();
    }
    if (!s) {
      return_free_pages(a.what);  // what was had of the memory may be another's turn
      return tl::unexpected(s.error());
    }
    suspended_tag told = std::move(a.told);
    told.places = r.places();
    told.bytes = r.bytes();
    keep(a.kept->give_up());
    away_.erase(found);
    return told;
  }

  status forget(std::string_view tag) {
    const std::lock_guard lock(mutex_);
    const auto found = away_.find(tag);
    if (found == away_.end()) {
      return make_error(errc::invalid_argument, "suspender::forget", "the tag is not suspended");
    }
    keep(found->second.kept->give_up());
    away_.erase(found);
    return {};
  }

  std::vector<suspended_tag> suspended() const {
    const std::lock_guard lock(mutex_);
    std::vector<suspended_tag> out;
    for (const auto &[tag, a] : away_) out.push_back(a.told);
    return out;
  }
  std::size_t pinned_kept() const {
    const std::lock_guard lock(mutex_);
    return spare_.bytes();
  }
  void drop_pinned() {
    const std::lock_guard lock(mutex_);
    spare_ = host_memory();
  }

 private:
  struct suspension {
    suspended_tag told;
    std::uint64_t id;
    selection what;
    std::unique_ptr<contents> kept;
  };

  result<std::unique_ptr<contents>> make_contents(const suspend_options &how, std::size_t bytes) {
    if (how.contents == keep_in::nothing) return std::make_unique<no_contents>();
    if (how.contents == keep_in::pinned_memory) {
      auto arena = pinned(bytes);
      if (!arena) return tl::unexpected(arena.error());
      return std::make_unique<pinned_contents>(std::move(*arena));
    }
    auto file = scratch_file::create(directory_of(how), bytes);
    if (!file) return tl::unexpected(file.error());
    auto buffers = pinned(by_.streams() * file_part);
    if (!buffers) return tl::unexpected(buffers.error());
    return std::make_unique<file_contents>(std::move(*file), std::move(*buffers), file_part);
  }

  // What was kept, where it is enough; else it goes before more is asked for.
  result<host_memory> pinned(std::size_t bytes) {
    host_memory spare = std::move(spare_);
    if (spare.bytes() >= bytes) return spare;
    spare = host_memory();
    return host_memory::create(device_, bytes);
  }

  void keep(host_memory m) {
    if (m.bytes() <= options_.keep_pinned && m.bytes() > spare_.bytes()) spare_ = std::move(m);
  }

  const device device_;
  const suspender_options options_;
  mutable std::mutex mutex_;
  transfer by_;
  host_memory spare_;
  std::map<std::string, suspension, std::less<>> away_;
};

suspender::suspender(std::unique_ptr<core> c) : core_(std::move(c)) {}
suspender::~suspender() = default;

result<std::unique_ptr<suspender>> suspender::create(const device &d, suspender_options options) {
  if (options.streams == 0) {
    return make_error(errc::invalid_argument, "suspender::create", "copies need a stream");
  }
  auto by = transfer::create(d, options.streams);
  if (!by) return tl::unexpected(by.error());
  return std::unique_ptr<suspender>(
      new suspender(std::make_unique<core>(d, options, std::move(*by))));
}

result<suspended_tag> suspender::suspend(std::string_view tag, const suspend_options &how) {
  return core_->suspend(tag, how);
}
result<suspended_tag> suspender::resume(std::string_view tag) {
  return core_->resume(tag);
}
status suspender::forget(std::string_view tag) {
  return core_->forget(tag);
}
std::vector<suspended_tag> suspender::suspended() const {
  return core_->suspended();
}
std::size_t suspender::pinned_kept() const {
  return core_->pinned_kept();
}
void suspender::drop_pinned() {
  core_->drop_pinned();
}

}  // namespace stillmap::checkpoint
