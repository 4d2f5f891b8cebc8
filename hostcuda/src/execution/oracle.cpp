#include "hostcuda/src/execution/oracle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <map>
#include <tuple>

#include "hostcuda/src/counters.h"
#include "hostcuda/src/execution/engine.h"

namespace hostcuda {
namespace {

struct key {
  CUdeviceptr at;
  std::size_t bytes;
  std::uint64_t uid;
  bool write;
  auto tie() const { return std::tie(at, bytes, uid, write); }
  bool operator<(const key &other) const { return tie() < other.tie(); }
};

using record_at = std::list<record>::iterator;

// Records sorted by start, in one map per power of two of length. A record that overlaps a query
// starts within one such length of it, so large ranges do not slow down the search for small ones.
struct range_index {
  std::array<std::map<key, record_at>, 64> by_length;
  std::uint64_t used = 0;  // bit k: by_length[k] is not empty

  static unsigned length_class(std::size_t bytes) {
    return static_cast<unsigned>(std::bit_width(bytes)) - 1;
  }

  template <class F>
  void overlapping(CUdeviceptr at, std::size_t bytes, F &&found) {
    const CUdeviceptr end = at + bytes;
    for (std::uint64_t left = used; left != 0; left &= left - 1) {
      const unsigned k = static_cast<unsigned>(std::countr_zero(left));
      const CUdeviceptr reach = k >= 63 ? ~CUdeviceptr{0} : (CUdeviceptr{2} << k) - 1;
      auto &map = by_length[k];
      auto it = map.lower_bound(key{at > reach ? at - reach : 0, 0, 0, false});
      while (it != map.end() && it->first.at < end) {
        const auto here = it++;
        if (here->first.at + here->first.bytes > at) found(here->second);
      }
    }
  }

  void erase(const record &r) {
    const unsigned k = length_class(r.bytes);
    by_length[k].erase(key{r.at, r.bytes, r.line->uid, r.write});
    if (by_length[k].empty()) used &= ~(std::uint64_t{1} << k);
  }
};

struct violation_note {
  hostcuda_violation_kind kind;
  CUdeviceptr at;
  std::size_t bytes;
  const char *first_what;
  const char *second_what;
  call_site first;
  call_site second;
};

constexpr std::size_t kept_violations = 64;

// Never destroyed, because workers may run while the process exits.
range_index &index() {
  static auto *const the = new range_index;
  return *the;
}
std::vector<violation_note> &notes() {
  static auto *const the = new std::vector<violation_note>;
  return *the;
}

void drop(timeline &line, record_at r) {
  index().erase(*r);
  // The record may hold the last reference to the timeline that owns its list.
  std::list<record> out;
  out.splice(out.begin(), line.records, r);
  out.front().line.reset();
}

}  // namespace

void oracle_note(const position &where, const touch &t, bool late) {
  if (t.bytes == 0 || where.tick <= where.line->known) return;
  auto &idx = index();
  const unsigned k = range_index::length_class(t.bytes);
  auto &list = where.line->records;
  auto [slot, fresh] = idx.by_length[k].try_emplace(key{t.at, t.bytes, where.line->uid, t.write});
  if (fresh) {
    idx.used |= std::uint64_t{1} << k;
    // A late record is older than most of the list. At the front it only delays the removal of the
    // others.
    slot->second = list.emplace(late ? list.begin() : list.end());
    auto &r = *slot->second;
    r.line = where.line;
    r.at = t.at;
    r.bytes = t.bytes;
    r.write = t.write;
    r.ctx = where.ctx;
  } else if (slot->second->tick >= where.tick) {
    return;
  } else {
    list.splice(late ? list.begin() : list.end(), list, slot->second);
  }
  auto &r = *slot->second;
  r.tick = where.tick;
  r.serial = where.serial;
  r.what = where.what;
  if (where.site != nullptr) {
    r.site = *where.site;
  } else {
    r.site.count = 0;
  }
}

bool oracle_check_alias(const position &where, const touch &t,
                        const std::vector<virtual_range> &others, bool report) {
  bool found = false;
  for (const auto &other : others) {
    index().overlapping(other.at, other.bytes, [&](record_at r) {
      if (!(r->write || t.write) || r->serial >= where.serial) return;
      if (r->tick <= r->line->known || r->line == where.line) return;
      if (where.seen->covers(*r->line, r->tick)) return;
      if (found) return;  // one report per range is sufficient
      found = true;
      if (!report) return;
      oracle_report(HOSTCUDA_UNORDERED_ALIAS, t.at, t.bytes, r->what, r->site, where.what,
                    where.site != nullptr ? *where.site : call_site{});
    });
  }
  return found;
}

void oracle_forget(CUdeviceptr at, std::size_t bytes, const position *last) {
  std::vector<record_at> hits;
  index().overlapping(at, bytes, [&](record_at r) {
    const bool before =
        last == nullptr ||
        (r->line == last->line ? r->tick <= last->tick : last->seen->covers(*r->line, r->tick));
    if (before) hits.push_back(r);
  });
  const CUdeviceptr end = at + bytes;
  for (const record_at hit : hits) {
    const record r = *hit;
    drop(*r.line, hit);
    const position where{r.line, r.tick, r.serial, nullptr, r.what, r.ctx, &r.site};
    if (r.at < at) oracle_note(where, {r.at, at - r.at, r.write}, true);
    if (r.at + r.bytes > end) oracle_note(where, {end, r.at + r.bytes - end, r.write}, true);
  }
}

void oracle_learn(const std::shared_ptr<timeline> &line, std::uint64_t tick) {
  if (tick <= line->known) return;
  line->known = tick;
  auto &list = line->records;
  while (!list.empty() && list.front().tick <= tick) drop(*line, list.begin());
}

void oracle_learn(const vector_clock &clock) {
  for (const auto &[line, tick] : clock.entries()) oracle_learn(line, tick);
}

std::vector<record> oracle_take(CUdeviceptr at, std::size_t bytes, bool is_free) {
  std::vector<record_at> hits;
  index().overlapping(at, bytes, [&](record_at r) {
    // The free has waited for what has finished, so it must not count against the next owner.
    if (is_free && r->line->blocking && r->tick > r->line->finished) return;
    hits.push_back(r);
  });
  std::vector<record> taken;
  for (const record_at r : hits) {
    const auto line = r->line;
    if (r->tick > line->known && !(is_free && line->blocking)) taken.push_back(*r);
    drop(*line, r);
  }
  std::sort(taken.begin(), taken.end(),
            [](const record &a, const record &b) { return a.serial < b.serial; });
  return taken;
}

void oracle_report(hostcuda_violation_kind kind, CUdeviceptr at, std::size_t bytes,
                   const char *first_what, const call_site &first, const char *second_what,
                   const call_site &second) {
  counters().violations.fetch_add(1, std::memory_order_relaxed);
  if (notes().size() < kept_violations) {
    notes().push_back({kind, at, bytes, first_what, second_what, first, second});
  }
}

void oracle_reset() {
  notes().clear();
  std::vector<std::shared_ptr<timeline>> lines;
  for (auto &map : index().by_length) {
    for (const auto &entry : map) lines.push_back(entry.second->line);
  }
  index() = {};
  // A record and its timeline refer to each other. Clearing breaks the cycle.
  for (const auto &line : lines) line->records.clear();
}

std::uint64_t violation_count() {
  return counters().violations.load(std::memory_order_relaxed);
}

namespace {
std::string sentence(const char *what, const char *verb, const call_site &site) {
  return std::string(what) + ' ' + verb + ' ' + describe(site);
}
}  // namespace

}  // namespace hostcuda

extern "C" __attribute__((visibility("default"))) CUresult hostcuda_get_violation(
    uint64_t at, hostcuda_violation *out) {
  using namespace hostcuda;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  violation_note note;
  {
    std::lock_guard lock(the_engine().mu);
    if (at >= notes().size()) return CUDA_ERROR_NOT_FOUND;
    note = notes()[static_cast<std::size_t>(at)];
  }
  out->kind = note.kind;
  out->at = note.at;
  out->bytes = note.bytes;
  std::snprintf(out->first, sizeof out->first, "%s",
                sentence(note.first_what, "queued at", note.first).c_str());
  std::snprintf(out->second, sizeof out->second, "%s",
                sentence(note.second_what, "called at", note.second).c_str());
  return CUDA_SUCCESS;
}
