#include "stillmap/checkpoint/process/process_checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap::process {
namespace {

bool has(const std::vector<std::string> &tags, const std::string &tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// Fails with the first blocker that the options do not remove.
status check(const std::vector<blocker> &blockers, const prepare_options &options) {
  for (const blocker &b : blockers) {
    if (b.kind == blocker_kind::imported && !options.copy_imports) {
      const error e = make_error(errc::not_supported,
                                 "the memory belongs to another process (see copy_imports)",
                                 b.range.begin.value(), 0, error_unit::address)
                          .value();
      return tl::unexpected(e.about("tag " + b.tag));
    }
    if (b.kind == blocker_kind::imported_handle) {
      return make_error(errc::busy, "memory of another process is imported but mapped nowhere");
    }
    if (b.kind == blocker_kind::exported_fd && !options.close_exports) {
      return make_error(errc::busy, "a file descriptor of exported memory is open",
                        static_cast<std::uint64_t>(b.fd));
    }
  }
  return {};
}

// Tags with mapped memory, each once.
std::vector<std::string> tags_of(const device &d) {
  std::vector<std::string> out;
  for (const block_record &b : d.space().blocks()) {
    if (b.mapped_bytes != 0 && !has(out, b.tag)) out.push_back(b.tag);
  }
  return out;
}

}  // namespace

result<std::unique_ptr<process_checkpoint>> process_checkpoint::create(
    std::vector<device> devices) {
  return with_host_memory(
      "process_checkpoint::create", [&]() -> result<std::unique_ptr<process_checkpoint>> {
        if (devices.empty()) {
          return make_error(errc::invalid_argument, "no device is given");
        }
        std::vector<device_entry> entries;
        for (const device &d : devices) {
          STILLMAP_ASSIGN_OR_RETURN(std::unique_ptr<checkpoint::suspender> suspender,
                                    checkpoint::suspender::create(d));
          entries.push_back({d, std::move(suspender)});
        }
        return std::unique_ptr<process_checkpoint>(
            new process_checkpoint(std::move(entries), std::move(devices)));
      });
}

process_checkpoint::~process_checkpoint() = default;

result<prepare_report> process_checkpoint::prepare(const prepare_options &options) {
  return with_host_memory("process_checkpoint::prepare", [&]() -> result<prepare_report> {
    const lock_guard lock(mutex_);
    if (prepared_) return make_error(errc::busy, "this process is prepared already");
    for (const device_entry &e : entries_) {
      if (e.suspender->suspended().empty()) continue;
      return make_error(errc::busy, "memory is still suspended: call resume() first");
    }
    for (const device &d : devices_) STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(d));
    const std::vector<blocker> blockers = find_blockers(devices_);
    STILLMAP_RETURN_IF_ERROR(check(blockers, options));
    // Opened before anything changes: closing the exports must not fail.
    const owned_fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (null.get() < 0) return make_system_error(errno, "the file cannot be opened", "/dev/null");
    prepare_report report;
    const status s = with_host_memory(
        [&]() STILLMAP_REQUIRES(mutex_) { return suspend(options, blockers, report); });
    if (!s) {
      report_if_failed(with_host_memory([&]() STILLMAP_REQUIRES(mutex_) { return resume_all(); }));
      return tl::unexpected(s.error());
    }
    report.exports = disarm_exported_fds(null);
    prepared_ = true;
    return report;
  });
}

status process_checkpoint::suspend(const prepare_options &options,
                                   const std::vector<blocker> &blockers, prepare_report &report) {
  std::vector<bool> found(options.evict.size());
  // Tags with imports last: undoing their suspension makes private copies of them.
  for (const bool imports : {false, true}) {
    for (const device_entry &e : entries_) {
      std::vector<std::string> with_imports;
      for (const blocker &b : blockers) {
        if (b.device != e.device.ordinal()) continue;
        report.imports += imports ? 1 : 0;
        if (!has(with_imports, b.tag)) with_imports.push_back(b.tag);
      }
      for (const std::string &tag : tags_of(e.device)) {
        const auto evicted = std::find(options.evict.begin(), options.evict.end(), tag);
        if (evicted != options.evict.end()) {
          found[static_cast<std::size_t>(evicted - options.evict.begin())] = true;
        }
        if (has(with_imports, tag) != imports) continue;
        if (!imports && !options.evict_everything && evicted == options.evict.end()) continue;
        checkpoint::suspend_options eviction;
        eviction.imports = imports;
        STILLMAP_ASSIGN_OR_RETURN(const checkpoint::suspended_tag done,
                                  e.suspender->suspend(tag, eviction));
        ++report.tags;
        report.bytes += done.bytes;
        report.released += done.released;
      }
    }
    const auto missing = std::find(found.begin(), found.end(), false);
    if (missing != found.end()) {
      const bool can = std::any_of(devices_.begin(), devices_.end(),
                                   [](const device &d) { return d.capabilities().vmm; });
      const error e = make_error(can ? errc::invalid_argument : errc::not_supported,
                                 can ? "no mapped memory has this tag"
                                     : "memory of a device without VMM cannot be evicted")
                          .value();
      return tl::unexpected(
          e.about("tag " + options.evict[static_cast<std::size_t>(missing - found.begin())]));
    }
  }
  for (const device &d : devices_) {
    if (d.driver().imports().empty()) continue;
    return make_error(errc::busy, "the driver did not release memory of another process");
  }
  return {};
}

status process_checkpoint::resume_all() {
  for (const device_entry &e : entries_) {
    for (const checkpoint::suspended_tag &t : e.suspender->suspended()) {
      STILLMAP_RETURN_IF_ERROR(e.suspender->resume(t.tag));
    }
  }
  return {};
}

status process_checkpoint::resume() {
  return with_host_memory("process_checkpoint::resume", [&]() -> status {
    const lock_guard lock(mutex_);
    STILLMAP_RETURN_IF_ERROR(resume_all());
    prepared_ = false;
    return {};
  });
}

bool process_checkpoint::prepared() const {
  const lock_guard lock(mutex_);
  return prepared_;
}

std::vector<checkpoint::suspended_tag> process_checkpoint::suspended() const {
  const lock_guard lock(mutex_);
  std::vector<checkpoint::suspended_tag> out;
  for (const device_entry &e : entries_) {
    for (checkpoint::suspended_tag &t : e.suspender->suspended()) out.push_back(std::move(t));
  }
  return out;
}

}  // namespace stillmap::process
