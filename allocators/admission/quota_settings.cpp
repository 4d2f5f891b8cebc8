#include "stillmap/allocators/admission/quota_settings.h"

#include <unistd.h>

#include "stillmap/allocators/admission/quota_rules.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {

result<quota_change> quota_settings::set_limit(std::uint64_t bytes,
                                               std::optional<std::uint64_t> if_revision) {
  if (bytes == 0) return make_error(errc::invalid_argument, "the limit must not be 0");
  STILLMAP_RETURN_IF_ERROR(check_revision(if_revision));
  const std::uint64_t minima = table_.minima();
  if (bytes < minima) {
    return make_error(errc::invalid_argument,
                      "the limit is less than the minima of the participants", bytes, minima,
                      error_unit::bytes);
  }
  table_.header.limit = bytes;
  STILLMAP_RETURN_IF_ERROR(count_change());
  STILLMAP_RETURN_IF_ERROR(
      ledger_.note(table_, {.bytes = bytes,
                            .action = quota_action::limit_set,
                            .process = static_cast<std::uint32_t>(::getpid())}));
  return table_.held() > bytes ? quota_change::deferred : quota_change::applied;
}

result<quota_change> quota_settings::set_terms(std::uint32_t process, const quota_terms &terms,
                                               std::optional<std::uint64_t> if_revision) {
  STILLMAP_RETURN_IF_ERROR(check_revision(if_revision));
  STILLMAP_RETURN_IF_ERROR(quota_rules::check(terms));
  std::uint64_t minima = 0;
  std::size_t found = 0;
  for (const quota_share &s : table_.used()) {
    const bool meant = s.is_taken() && s.holding.process == process;
    found += meant ? 1 : 0;
    minima += !s.is_taken() ? 0 : meant ? terms.minimum : s.minimum;
  }
  if (found == 0) {
    return make_error(errc::invalid_argument, "no participant has this process id", process);
  }
  if (minima > table_.header.limit) {
    return make_error(errc::invalid_argument, "the minima of all would exceed the limit", minima,
                      table_.header.limit, error_unit::bytes);
  }
  STILLMAP_RETURN_IF_ERROR(count_change());
  quota_change out = quota_change::applied;
  const quota_file &file = ledger_.file();
  for (std::size_t i = 0; i < table_.header.used; ++i) {
    quota_share &s = table_.shares[i];
    quota_exchange &e = table_.exchanges[i];
    if (!s.is_taken() || s.holding.process != process) continue;
    s.minimum = terms.minimum;
    s.maximum = terms.maximum;
    e.priority = terms.priority;
    // The holding is its owner's, who may be writing it.
    STILLMAP_RETURN_IF_ERROR(file.write(i, s, &quota_share::minimum));
    STILLMAP_RETURN_IF_ERROR(file.write(i, s, &quota_share::maximum));
    STILLMAP_RETURN_IF_ERROR(file.write(i, e, &quota_exchange::priority));
    if (s.reserved() > terms.maximum) out = quota_change::deferred;
  }
  // What others hold above their own minimum may be in the way of it.
  if (table_.sum(quota_rules::charged) > table_.header.limit) out = quota_change::deferred;
  STILLMAP_RETURN_IF_ERROR(ledger_.note(
      table_, {.bytes = terms.maximum, .action = quota_action::terms_set, .process = process}));
  return out;
}

quota_stats quota_settings::stats() const {
  quota_stats out;
  out.limit = table_.header.limit;
  out.device_bytes = table_.header.device_bytes;
  out.outside = table_.header.outside;
  out.revision = table_.header.revision;
  const quota_rules rules(table_);
  for (std::size_t i = 0; i < table_.header.used; ++i) {
    const quota_share &s = table_.shares[i];
    const quota_exchange &e = table_.exchanges[i];
    if (!s.is_taken()) continue;
    out.reserved += s.reserved();
    quota_participant p{.process = s.holding.process,
                        .reserved = s.reserved(),
                        .terms = table_.terms(i),
                        .listens = e.listens != 0,
                        .waiting = rules.waits(i) ? e.wait.bytes : 0};
    for (std::size_t k = 0; k < reclaim_kinds; ++k) p.offers[k] = (e.offers >> k & 1) != 0;
    out.participants.push_back(p);
  }
  return out;
}

status quota_settings::check_revision(std::optional<std::uint64_t> expected) const {
  if (!expected || *expected == table_.header.revision) return {};
  return make_error(errc::busy,
                    "the limit or terms have changed meanwhile: read the revision again",
                    table_.header.revision, *expected);
}

status quota_settings::count_change() {
  ++table_.header.revision;
  return ledger_.file().write_header(table_.header);
}

}  // namespace stillmap
