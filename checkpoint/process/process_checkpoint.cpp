#include "stillmap/checkpoint/process/process_checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "stillmap/checkpoint/common/internal/wait_idle.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap::process {
namespace {

constexpr const char *op = "process::prepare";

bool has(const std::vector<std::string> &tags, const std::string &tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// The first that will not be dealt with.
status check(const std::vector<obstacle> &in_the_way, const prepare_options &how) {
  for (const obstacle &o : in_the_way) {
    const std::uint64_t at = o.range.begin.value();
    if (o.kind == obstacle_kind::imported && !how.copy_imports) {
      return make_error(errc::not_supported, op, "the memory is another process's", at);
    }
    if (o.kind == obstacle_kind::imported_handle) {
      return make_error(errc::busy, op, "memory of another process is held, and mapped nowhere");
    }
    if (o.kind == obstacle_kind::exported_fd && !how.close_exports) {
      return make_error(errc::busy, op, "a descriptor of exported memory is open",
                    static_cast<std::uint64_t>(o.fd));
    }
  }
  return {};
}

// Tags with memory behind them, each once.
std::vector<std::string> tags_of(const device &d) {
  std::vector<std::string> out;
  for (const block_record &b : d.space().blocks()) {
    if (b.mapped_bytes != 0 && !has(out, b.tag)) out.push_back(b.tag);
  }
  return out;
}

}  // namespace

result<std::unique_ptr<preparation>> preparation::create(std::vector<device> devices) {
  if (devices.empty()) {
    return make_error(errc::invalid_argument, "preparation::create", "there is no device");
  }
  std::vector<unit> units;
  for (const device &d : devices) {
    auto by = checkpoint::suspender::create(d);
    if (!by) return tl::unexpected(by.error());
    units.push_back({d, std::move(*by)});
  }
  return std::unique_ptr<preparation>(new preparation(std::move(units), std::move(devices)));
}

preparation::~preparation() = default;

result<prepared> preparation::prepare(const prepare_options &how) {
  const std::lock_guard lock(mutex_);
  if (fit_) return make_error(errc::busy, op, "this process is prepared already");
  for (const unit &u : units_) {
    if (u.by->suspended().empty()) continue;
    return make_error(errc::busy, op, "memory is away that did not come back: resume_after()");
  }
  for (const device &d : devices_) {
    if (status s = checkpoint::wait_until_idle(d); !s) return tl::unexpected(s.error());
  }
  const std::vector<obstacle> in_the_way = obstacles(devices_);
  if (status s = check(in_the_way, how); !s) return tl::unexpected(s.error());
  // Had early, so that closing cannot fail.
  const owned_fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (nothing.get() < 0) {
    return tl::unexpected(
        error{std::error_code(errno, std::system_category()), op, "/dev/null cannot be opened"});
  }
  prepared told;
  if (status s = suspend(how, in_the_way, told); !s) {
    if (const status back = bring_back(); !back) report_background_error(back.error());
    return tl::unexpected(s.error());
  }
  told.exports = disarm_exported_fds(nothing);
  fit_ = true;
  return told;
}

status preparation::suspend(const prepare_options &how, const std::vector<obstacle> &in_the_way,
                            prepared &told) {
  std::vector<bool> known(how.evict.size());
  // What nobody else has first: it comes back as it was.
  for (const bool imports : {false, true}) {
    for (const unit &u : units_) {
      const std::vector<std::string> there = tags_of(u.on);
      std::vector<std::string> concerned;  // tags with imports
      for (const obstacle &o : in_the_way) {
        if (o.device != u.on.ordinal()) continue;
        told.imports += imports ? 1 : 0;
        if (!has(concerned, o.tag)) concerned.push_back(o.tag);
      }
      for (const std::string &tag : there) {
        const auto asked = std::find(how.evict.begin(), how.evict.end(), tag);
        if (asked != how.evict.end())
          known[static_cast<std::size_t>(asked - how.evict.begin())] = true;
        if (has(concerned, tag) != imports) continue;
        if (!imports && !how.evict_everything && asked == how.evict.end()) continue;
        checkpoint::suspend_options options;
        options.imports = imports;
        const auto went = u.by->suspend(tag, options);
        if (!went) return tl::unexpected(went.error());
        ++told.tags;
        told.bytes += went->bytes;
        told.released += went->released;
      }
    }
    const auto unknown = std::find(known.begin(), known.end(), false);
    if (unknown != known.end()) {
      const bool can = std::any_of(devices_.begin(), devices_.end(),
                                   [](const device &d) { return d.capabilities().vmm; });
      return make_error(can ? errc::invalid_argument : errc::not_supported, op,
                    can ? "no memory that is mapped has this tag"
                        : "nothing can be evicted where pages cannot be mapped",
                    static_cast<std::uint64_t>(unknown - known.begin()));
    }
  }
  for (const device &d : devices_) {
    if (d.driver().imports().empty()) continue;
    return make_error(errc::busy, op, "the driver does not let go of another process's memory");
  }
  return {};
}

status preparation::bring_back() {
  for (const unit &u : units_) {
    for (const checkpoint::suspended_tag &t : u.by->suspended()) {
      const auto back = u.by->resume(t.tag);
      if (!back) return tl::unexpected(back.error());
    }
  }
  return {};
}

status preparation::resume_after() {
  const std::lock_guard lock(mutex_);
  if (status s = bring_back(); !s) return s;
  fit_ = false;
  return {};
}

bool preparation::fit() const {
  const std::lock_guard lock(mutex_);
  return fit_;
}

std::vector<checkpoint::suspended_tag> preparation::away() const {
  const std::lock_guard lock(mutex_);
  std::vector<checkpoint::suspended_tag> out;
  for (const unit &u : units_) {
    for (checkpoint::suspended_tag &t : u.by->suspended()) out.push_back(std::move(t));
  }
  return out;
}

}  // namespace stillmap::process
