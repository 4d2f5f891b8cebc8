#include "tools/stillmap/map/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <utility>

namespace stillmap::tool {

const char *word_for(backing b) {
  constexpr std::array<const char *, backing_kinds> words = {"reserved", "mapped", "shared",
                                                             "retiring"};
  return words[static_cast<std::size_t>(b)];
}

std::uint64_t picture_row::bytes_of(backing kind) const {
  std::uint64_t covered = 0, found = 0;
  for (const backing_run &r : runs) {
    covered += r.bytes;
    if (r.kind == kind) found += r.bytes;
  }
  return kind == backing::nothing ? bytes - std::min(bytes, covered) : found;
}

std::uint64_t picture_row::used_end() const {
  return runs.empty() ? 0 : runs.back().offset + runs.back().bytes;
}

namespace {

// The number of mapped addresses of each page; retiring mappings do not count.
std::map<std::uint64_t, unsigned> addresses_of_pages(std::span<const mapping_record> mappings) {
  std::map<std::uint64_t, unsigned> out;
  for (const mapping_record &m : mappings) {
    if (m.backing && m.state == mapping_state::mapped) ++out[m.backing->id()];
  }
  return out;
}

bool writable(const mapping_record &m) {
  return std::any_of(m.access.begin(), m.access.end(),
                     [](const access_grant &g) { return g.mode == access_mode::read_write; });
}

void add_run(picture_row &row, const backing_run &run) {
  backing_run *const last = row.runs.empty() ? nullptr : &row.runs.back();
  if (last != nullptr && last->offset + last->bytes == run.offset && last->kind == run.kind &&
      last->read_only == run.read_only) {
    last->bytes += run.bytes;
  } else {
    row.runs.push_back(run);
  }
}

}  // namespace

picture picture_of(std::span<const block_record> blocks, std::span<const mapping_record> mappings,
                   const page_pool_stats &pool, const address_space_stats &stats) {
  picture p;
  p.physical = stats.physical.bytes();
  p.pool_waiting = std::min(pool.waiting, pool.free).bytes();
  p.pool_ready = pool.free.bytes() - p.pool_waiting;

  for (const block_record &b : blocks) {
    p.rows.push_back({b.tag, b.range.begin.value(), b.range.bytes, b.generation, true, {}});
  }
  const auto pages = addresses_of_pages(mappings);
  std::set<std::uint64_t> counted;
  for (const mapping_record &m : mappings) {
    if (m.suspended_by != 0) continue;  // addresses only
    const auto page = m.backing ? pages.find(m.backing->id()) : pages.end();
    const bool used = page != pages.end();
    backing_run run;
    run.bytes = m.range.bytes;
    run.kind = m.state == mapping_state::retiring ? backing::retiring
               : used && page->second > 1         ? backing::shared
                                                  : backing::mapped;
    run.read_only = !writable(m);
    if (!m.backing || counted.insert(m.backing->id()).second) {
      (used || !m.backing ? p.pages_in_use : p.pages_retiring) += m.range.bytes;
    }

    const std::uint64_t at = m.range.begin.value();
    const auto row_of_page = std::find_if(p.rows.begin(), p.rows.end(), [&](const picture_row &r) {
      return r.reservation && r.begin <= at && at < r.begin + r.bytes;
    });
    if (row_of_page != p.rows.end()) {
      run.offset = at - row_of_page->begin;
      add_run(*row_of_page, run);
    } else {
      p.rows.push_back({"allocation", at, m.range.bytes, 0, false, {run}});
    }
  }
  std::sort(p.rows.begin(), p.rows.end(),
            [](const picture_row &a, const picture_row &b) { return a.begin < b.begin; });
  return p;
}

picture picture_of(const device &d, std::string title) {
  const auto blocks = d.space().blocks();
  const auto mappings = d.space().mappings();
  const auto pool = d.pool();
  picture p =
      picture_of(blocks, mappings, pool ? pool->stats() : page_pool_stats{}, d.space().stats());
  p.title = std::move(title);
  p.device = d.name();
  p.page_bytes = d.capabilities().page_bytes;
  p.device_memory = d.total_memory().bytes();
  return p;
}

std::uint64_t zoom_of(const picture_row &row, std::uint64_t page_bytes) {
  const std::uint64_t used = std::max(row.used_end(), page_bytes);
  if (row.runs.empty() || used >= row.bytes / 6) return 0;
  // A round length just above the used part: 1, 1.25, 1.5 or 1.75 times a power of two.
  const std::uint64_t step = std::max<std::uint64_t>(std::bit_floor(used) / 4, 1);
  const std::uint64_t round = (used + step - 1) / step * step;
  return std::min(std::max(round, page_bytes), row.bytes);
}

std::vector<cell> cells_of(const picture_row &row, std::uint64_t span, std::size_t cells) {
  std::vector<cell> out(cells);
  auto run = row.runs.begin();
  for (std::size_t i = 0; i < cells; ++i) {
    const auto bound = [&](std::size_t n) {
      return static_cast<std::uint64_t>(static_cast<long double>(span) *
                                        static_cast<long double>(n) /
                                        static_cast<long double>(cells));
    };
    const std::uint64_t begin = bound(i), end = std::max(bound(i + 1), begin + 1);
    while (run != row.runs.end() && run->offset + run->bytes <= begin) ++run;
    std::uint64_t of_kind[backing_kinds] = {};
    for (auto r = run; r != row.runs.end() && r->offset < end; ++r) {
      const std::uint64_t from = std::max(begin, r->offset);
      const std::uint64_t to = std::min(end, r->offset + r->bytes);
      if (to > from) of_kind[static_cast<std::size_t>(r->kind)] += to - from;
    }
    for (std::size_t k = backing_kinds - 1; k > 0; --k) {
      if (of_kind[k] == 0) continue;
      out[i] = {static_cast<backing>(k), of_kind[k] == end - begin};
      break;
    }
  }
  return out;
}

void write_json(const picture &p, json_writer &json) {
  json.begin_object("address_space");
  json.field("page_bytes", p.page_bytes).field("device_memory", p.device_memory);
  json.field("physical_bytes", p.physical).field("bytes_in_use", p.pages_in_use);
  json.field("retiring_bytes", p.pages_retiring);
  json.field("pool_ready_bytes", p.pool_ready).field("pool_waiting_bytes", p.pool_waiting);
  json.begin_array("rows");
  for (const picture_row &row : p.rows) {
    json.begin_object();
    json.field("name", row.name).field("kind", row.reservation ? "reservation" : "allocation");
    json.field("address", fmt::format("{:#x}", row.begin)).field("bytes", row.bytes);
    json.field("generation", row.generation);
    json.begin_array("runs");
    for (const backing_run &r : row.runs) {
      json.begin_object();
      json.field("offset", r.offset).field("bytes", r.bytes);
      json.field("state", word_for(r.kind)).field("read_only", r.read_only);
      json.end();
    }
    json.end().end();
  }
  json.end().end();
}

}  // namespace stillmap::tool
