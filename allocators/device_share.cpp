#include "stillmap/allocators/device_share.h"

#include <map>
#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/parse_bytes.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

// Never destroyed, like the heaps of torch_heaps.
struct open_quotas {
  mutex lock;
  struct entry {
    int ordinal = 0;
    std::weak_ptr<embedded_quota> quota;
  };
  std::map<std::string, entry> by_name STILLMAP_GUARDED_BY(lock);
};

open_quotas &quotas_of_process() {
  static open_quotas *const made = new open_quotas;
  return *made;
}

// A file that an earlier run has left may have its limit.
status set_limit_if_unused(const std::string &name, std::uint64_t limit) {
  if (limit == 0) return {};
  const auto found = shared_quota::stats_of(name);
  if (!found || !found->participants.empty() || found->limit == limit) return {};
  STILLMAP_ASSIGN_OR_RETURN(const quota_change done, shared_quota::set_limit(name, limit));
  static_cast<void>(done);
  return {};
}

result<std::shared_ptr<embedded_quota>> open_quota(const std::string &name, const share_settings &s,
                                                   const device &d) {
  STILLMAP_RETURN_IF_ERROR(set_limit_if_unused(name, s.limit));
  shared_quota_options options;
  options.terms = s.terms;
  options.device = d;
  auto made = embedded_quota::open(name, options);
  if (made || !made.error().is(errc::invalid_argument)) return made;
  // It does not exist. Where another process makes it at the same moment, with another limit, that one is there first.
  options.limit = s.limit != 0 ? s.limit : d.total_memory().bytes();
  made = embedded_quota::open(name, options);
  if (made || !made.error().is(errc::invalid_argument)) return made;
  options.limit = 0;
  return embedded_quota::open(name, options);
}

}  // namespace

result<share_settings> parse_share(std::string_view text, const char *variable) {
  const operation_scope scope("parse_share");
  share_settings out;
  const std::size_t colon = text.rfind(':');
  out.name = text.substr(0, colon);
  const auto refused = [&](const char *why) {
    return tl::unexpected(make_error(errc::invalid_argument, why).value().about(variable));
  };
  if (out.name.empty()) return refused("it has no name before the colon");
  if (colon == std::string_view::npos) return out;
  STILLMAP_ASSIGN_OR_RETURN(out.limit, parse_bytes(text.substr(colon + 1), variable));
  if (out.limit == 0) return refused("the limit must not be 0");
  return out;
}

std::string quota_name(const share_settings &s, int ordinal) {
  return ordinal == 0 ? s.name : s.name + "." + std::to_string(ordinal);
}

result<std::shared_ptr<embedded_quota>> share_device(const share_settings &s, const device &d) {
  return with_host_memory("share_device", [&]() -> result<std::shared_ptr<embedded_quota>> {
    const std::string name = quota_name(s, d.ordinal());
    open_quotas &all = quotas_of_process();
    const lock_guard lock(all.lock);
    open_quotas::entry &known = all.by_name[name];
    if (auto there = known.quota.lock()) return there;
    STILLMAP_ASSIGN_OR_RETURN(auto made, open_quota(name, s, d));
    STILLMAP_RETURN_IF_ERROR(made->shared().start_thread());
    known = {d.ordinal(), made};
    return made;
  });
}

std::shared_ptr<embedded_quota> known_share(int ordinal) {
  open_quotas &all = quotas_of_process();
  const lock_guard lock(all.lock);
  for (const auto &[name, known] : all.by_name) {
    if (known.ordinal != ordinal) continue;
    if (auto there = known.quota.lock()) return there;
  }
  return nullptr;
}

std::string known_share_name(int ordinal) {
  open_quotas &all = quotas_of_process();
  const lock_guard lock(all.lock);
  for (const auto &[name, known] : all.by_name) {
    if (known.ordinal == ordinal && !known.quota.expired()) return name;
  }
  return {};
}

}  // namespace stillmap
