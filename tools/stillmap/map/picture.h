// A picture of a device's address space, as data: what is reserved, what has memory behind it, what
// is on its way out, and what waits in the pool. Taken from the ledger; drawn by picture_terminal
// and picture_svg. Values only: holds no pages and no device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/page_pool.h"
#include "tools/stillmap/common/json.h"
#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/common/terminal.h"

namespace stillmap::tool {

// What stands at an address; the order is how urgently a cell that holds several should say so.
enum class backing : unsigned char {
  nothing,   // reserved: address space that costs no memory
  mapped,    // a page of its own
  shared,    // a page that is at another address too: alias or fork
  retiring,  // given back; unmapped when the device work before it is done
};
inline constexpr std::size_t backing_kinds = 4;
const char *word_for(backing b);  // "reserved", "mapped", "shared", "retiring"

struct backing_run {
  std::uint64_t offset = 0;  // from the row's begin
  std::uint64_t bytes = 0;
  backing kind = backing::mapped;
  bool read_only = false;
  bool operator==(const backing_run &) const = default;
};

struct picture_row {
  std::string name;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  bool reservation = true;        // false: one allocation of the copying fallback
  std::vector<backing_run> runs;  // address order, disjoint; adjacent equal ones are one

  std::uint64_t bytes_of(backing kind) const;  // `nothing`: what no run covers
  std::uint64_t used_end() const;              // offset after the last run; 0: none
};

struct picture_step {  // of the history
  std::uint64_t size = 0;
  std::uint64_t mapped = 0;
  std::uint64_t generation = 0;
};

struct picture {
  std::string title;
  std::string device;
  std::uint64_t page_bytes = 0;
  std::uint64_t device_memory = 0;
  std::vector<picture_row> rows;     // address order
  std::uint64_t pages_in_use = 0;    // bytes of pages at some address, each page counted once
  std::uint64_t pages_retiring = 0;  // bytes of pages whose every address is retiring
  std::uint64_t pool_ready = 0;      // bytes of free pages that can be used at once
  std::uint64_t pool_waiting = 0;    // bytes of free pages behind a fence
  std::uint64_t physical = 0;        // all device memory held
  std::string history_name;
  std::vector<picture_step> history;  // of one buffer, oldest first; may be empty
  std::vector<picture_step> copying;  // the same job by copying, to set beside it; may be empty
};

// From the ledger's books, which are consistent one by one.
picture picture_of(std::span<const block_record> blocks, std::span<const mapping_record> mappings,
                   const page_pool_stats &pool, const address_space_stats &stats);
picture picture_of(const device &d, std::string title);

// For a reservation far larger than what is in it: the offsets [0, bytes) that a second, enlarged
// bar should show; 0 where the whole bar shows everything well.
std::uint64_t zoom_of(const picture_row &row, std::uint64_t page_bytes);

// What cell `i` of `cells` equal parts of [0, span) shows; `full`: all of it is of that kind.
struct cell {
  backing kind = backing::nothing;
  bool full = true;
};
std::vector<cell> cells_of(const picture_row &row, std::uint64_t span, std::size_t cells);

// Lines with newlines at their ends, at most t.width columns.
std::string draw_in_terminal(const picture &p, const terminal &t);
// One SVG document; readable on light and dark pages.
std::string draw_as_svg(const picture &p);
// Writes it, with the folders it needs. Errors: exit_failed, naming the path.
outcome<void> write_svg(const picture &p, const std::string &path);
// As a field of an object that is open.
void write_json(const picture &p, json_writer &json);

}  // namespace stillmap::tool
