#include "stillmap/checkpoint/suspend/suspender.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "stillmap/checkpoint/common/selection.h"
#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/suspend/internal/backing_store.h"
#include "stillmap/checkpoint/suspend/internal/resumption.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {
namespace {

constexpr const char *no_room =
    "the contents do not fit into the host memory that is free: suspend to a file, discard them, "
    "or "
    "suspend fewer tags";
constexpr std::size_t file_buffer_bytes = std::size_t{16} << 20;

std::string directory_of(const suspend_options &options) {
  if (!options.directory.empty()) return options.directory;
  const char *const configured = ::secure_getenv("TMPDIR");
  return configured != nullptr && *configured != 0 ? configured : "/tmp";
}

std::vector<page_pool *> pools_of(const selection &memory) {
  std::vector<page_pool *> out;
  for (const selection::selected_page &p : memory.pages) {
    if (std::find(out.begin(), out.end(), p.pool.get()) == out.end()) out.push_back(p.pool.get());
  }
  return out;
}

// Releases the free pages of these pools to the device. A page that cannot be released stays free
// in its pool.
void trim_pools(std::span<page_pool *const> pools) noexcept {
  for (page_pool *const pool : pools) {
    const auto trimmed = with_host_memory([&] { return pool->trim(); });
    if (!trimmed) report_background_error(trimmed.error());
  }
}

// Device memory that these pools hold.
std::size_t created_bytes(std::span<page_pool *const> pools) {
  std::size_t sum = 0;
  for (const page_pool *const pool : pools) sum += pool->stats().created.bytes();
  return sum;
}

}  // namespace

// Lock order: mutex_, then those of leases and of the ledger.
class suspender::core {
 public:
  core(const device &d, const suspender_options &options, batch_copier copier)
      : device_(d), options_(options), copier_(std::move(copier)) {}

  ~core() {
    if (suspended_.empty()) return;
    std::size_t lost = 0;
    for (const auto &[tag, s] : suspended_) {
      release_places(s);
      lost += s.report.bytes;
    }
    const operation_scope scope("suspender::~suspender");
    report_background_error(make_error(errc::busy, "the contents of suspended memory are lost",
                                       lost, 0, error_unit::bytes)
                                .value());
  }

  result<suspended_tag> suspend(std::string_view tag, const suspend_options &options) {
    const lock_guard lock(mutex_);
    if (suspended_.find(tag) != suspended_.end()) {
      return fail(errc::busy, "the tag is suspended already", tag);
    }
    STILLMAP_ASSIGN_OR_RETURN(const tag_lease alone, lease(tag));
    const relaxed_capture_mode relaxed(device_.driver());
    STILLMAP_RETURN_IF_ERROR(relaxed.entered());
    // What cannot be suspended is refused before the driver is asked to wait.
    STILLMAP_ASSIGN_OR_RETURN(selection memory, select(device_, tag, options.imports));
    STILLMAP_RETURN_IF_ERROR(check_store(options.store, memory.bytes));
    STILLMAP_RETURN_IF_ERROR(wait_until_idle(device_, options.idle));
    STILLMAP_ASSIGN_OR_RETURN(std::unique_ptr<contents_store> store,
                              create_store(options, memory.bytes));
    suspended_tag out{std::string(tag), options.store, memory.places.size(), memory.bytes, {}};
    const std::vector<page_pool *> pools = pools_of(memory);
    // The entry is allocated before the memory is unmapped: afterwards nothing may fail.
    suspensions entry;
    suspension &s = entry
                        .emplace(out.tag, suspension{out, next_suspension_id(), std::move(memory),
                                                     std::move(store)})
                        .first->second;
    const std::size_t before = created_bytes(pools);
    const status done =
        with_host_memory([&]() STILLMAP_REQUIRES(mutex_) { return save_and_unmap(s); });
    if (!done) {
      keep_pinned(s.store->take_pinned());
      return tl::unexpected(done.error());
    }
    suspended_.insert(entry.extract(entry.begin()));
    trim_pools(pools);
    out.released = physical_size(before - std::min(before, created_bytes(pools)));
    s.report.released = out.released;
    return out;
  }

  result<suspended_tag> resume(std::string_view tag) {
    const lock_guard lock(mutex_);
    STILLMAP_ASSIGN_OR_RETURN(const auto found, find(tag));
    STILLMAP_ASSIGN_OR_RETURN(const tag_lease alone, lease(tag));
    const relaxed_capture_mode relaxed(device_.driver());
    STILLMAP_RETURN_IF_ERROR(relaxed.entered());
    suspension &s = found->second;
    const std::vector<page_pool *> pools = pools_of(s.memory);
    resumption r(device_, s.memory, s.id);
    status done = r.map();
    if (done) {
      done = with_host_memory(
          [&]() STILLMAP_REQUIRES(mutex_) { return s.store->load(copier_, r.contents()); });
      done ? r.finish() : r.undo();
    }
    if (!done) {
      trim_pools(pools);  // others may need what was created
      return tl::unexpected(done.error());
    }
    suspended_tag report = std::move(s.report);
    report.places = r.places();
    report.bytes = r.bytes();
    keep_pinned(s.store->take_pinned());
    suspended_.erase(found);
    return report;
  }

  status forget(std::string_view tag) {
    const lock_guard lock(mutex_);
    STILLMAP_ASSIGN_OR_RETURN(const auto found, find(tag));
    release_places(found->second);
    keep_pinned(found->second.store->take_pinned());
    suspended_.erase(found);
    return {};
  }

  std::vector<suspended_tag> suspended() const {
    const lock_guard lock(mutex_);
    std::vector<suspended_tag> out;
    for (const auto &[tag, s] : suspended_) out.push_back(s.report);
    return out;
  }
  std::size_t pinned_kept() const {
    const lock_guard lock(mutex_);
    return spare_.bytes();
  }
  void drop_pinned() {
    const lock_guard lock(mutex_);
    spare_ = host_memory();
  }

 private:
  struct suspension {
    suspended_tag report;
    std::uint64_t id;
    selection memory;
    std::unique_ptr<contents_store> store;
  };

  using suspensions = std::map<std::string, suspension, std::less<>>;

  result<suspensions::iterator> find(std::string_view tag) STILLMAP_REQUIRES(mutex_) {
    const auto found = suspended_.find(tag);
    if (found != suspended_.end()) return found;
    return fail(errc::invalid_argument, "the tag is not suspended", tag);
  }

  result<tag_lease> lease(std::string_view tag) const {
    const std::string name(tag);
    return tag_lease::take(device_, {&name, 1}, lease_kind::exclusive);
  }

  status check_store(backing_store store, std::size_t bytes) const {
    if (store != backing_store::pinned_host || !device_.capabilities().integrated) return {};
    return make_error(
        errc::not_supported,
        "this device has no memory but the host's, so pinned host memory would take as "
        "much as is released: suspend to a file on a disk, or discard the contents",
        bytes, 0, error_unit::bytes);
  }

  void release_places(const suspension &s) const {
    for (const virtual_range r : s.memory.ranges) device_.space().release_suspended(r, s.id);
  }

  status save_and_unmap(suspension &s) STILLMAP_REQUIRES(mutex_) {
    STILLMAP_RETURN_IF_ERROR(s.store->save(copier_, s.memory.contents));
    remap_plan plan({});
    for (const virtual_range r : s.memory.ranges) plan.suspend(r, s.id);
    return device_.space().apply(std::move(plan));
  }

  result<std::unique_ptr<contents_store>> create_store(const suspend_options &options,
                                                       std::size_t bytes)
      STILLMAP_REQUIRES(mutex_) {
    if (options.store == backing_store::discard) return std::make_unique<discarding_store>();
    if (options.store == backing_store::pinned_host) {
      STILLMAP_ASSIGN_OR_RETURN(host_memory memory, pinned(bytes));
      return std::make_unique<pinned_store>(std::move(memory));
    }
    STILLMAP_ASSIGN_OR_RETURN(scratch_file file,
                              scratch_file::create(directory_of(options), bytes));
    STILLMAP_ASSIGN_OR_RETURN(host_memory buffers, pinned(copier_.streams() * file_buffer_bytes));
    return std::make_unique<file_store>(std::move(file), std::move(buffers), file_buffer_bytes);
  }

  // Reuses the kept pinned memory where it is large enough; otherwise frees it first.
  result<host_memory> pinned(std::size_t bytes) STILLMAP_REQUIRES(mutex_) {
    host_memory spare = std::move(spare_);
    if (spare.bytes() >= bytes) return spare;
    spare = host_memory();
    return host_memory::create(device_, bytes, no_room);
  }

  void keep_pinned(host_memory m) STILLMAP_REQUIRES(mutex_) {
    if (m.bytes() <= options_.keep_pinned && m.bytes() > spare_.bytes()) spare_ = std::move(m);
  }

  static tl::unexpected<error> fail(errc c, const char *reason, std::string_view tag) {
    const error e = make_error(c, reason).value();
    return tl::unexpected(e.about("tag " + std::string(tag)));
  }

  const device device_;
  const suspender_options options_;
  mutable mutex mutex_;
  batch_copier copier_ STILLMAP_GUARDED_BY(mutex_);
  host_memory spare_ STILLMAP_GUARDED_BY(mutex_);
  suspensions suspended_ STILLMAP_GUARDED_BY(mutex_);
};

suspender::suspender(std::unique_ptr<core> c) : core_(std::move(c)) {}
suspender::~suspender() = default;

result<std::unique_ptr<suspender>> suspender::create(const device &d, suspender_options options) {
  const operation_scope scope("suspender::create");
  if (options.streams == 0) {
    return make_error(errc::invalid_argument, "at least one stream is needed");
  }
  return with_host_memory([&]() -> result<std::unique_ptr<suspender>> {
    STILLMAP_ASSIGN_OR_RETURN(batch_copier copier, batch_copier::create(d, options.streams));
    return std::unique_ptr<suspender>(
        new suspender(std::make_unique<core>(d, options, std::move(copier))));
  });
}

result<suspended_tag> suspender::suspend(std::string_view tag, const suspend_options &options) {
  return with_host_memory("suspender::suspend", [&] { return core_->suspend(tag, options); });
}
result<suspended_tag> suspender::resume(std::string_view tag) {
  return with_host_memory("suspender::resume", [&] { return core_->resume(tag); });
}
status suspender::forget(std::string_view tag) {
  return with_host_memory("suspender::forget", [&] { return core_->forget(tag); });
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
