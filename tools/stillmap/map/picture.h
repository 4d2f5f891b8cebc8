// A picture of a device's address space, as data: reservations, mapped, shared and retiring pages,
// and the page pool. Read from the ledger; drawn by picture_terminal and picture_svg. Holds no pages
// and no device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/page_pool.h"
#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/common/terminal.h"

namespace stillmap::tool {

// The state of an address range. A cell that covers several states shows the last of them.
enum class backing : unsigned char {
  nothing,   // reserved: address space without memory
  mapped,    // a page that is mapped once
  shared,    // a page that is mapped at another address too: alias or fork
  retiring,  // released; unmapped when earlier device work has finished
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
  bool reservation = true;        // false: an allocation of the copying fallback
  std::vector<backing_run> runs;  // in address order, disjoint, adjacent equal runs merged

  std::uint64_t bytes_of(backing kind) const;  // `nothing`: bytes that no run covers
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
  std::uint64_t pages_in_use = 0;    // bytes of mapped pages, each page once
  std::uint64_t pages_retiring = 0;  // bytes of pages that are only retiring
  std::uint64_t pool_ready = 0;      // bytes of free pages that are ready
  std::uint64_t pool_waiting = 0;    // bytes of free pages behind a fence
  std::uint64_t physical = 0;        // all device memory held
  std::string history_name;
  std::vector<picture_step> history;  // of one buffer, oldest first; may be empty
  std::vector<picture_step> copying;  // the same job by copying; may be empty
};

// From snapshots of the ledger, each consistent by itself.
picture picture_of(std::span<const block_record> blocks, std::span<const mapping_record> mappings,
                   const page_pool_stats &pool, const address_space_stats &stats);
picture picture_of(const device &d, std::string title);

// For a reservation much larger than its used part: the offsets [0, bytes) for a second, enlarged
// bar; 0 if the whole bar is enough.
std::uint64_t zoom_of(const picture_row &row, std::uint64_t page_bytes);

// The states of `cells` equal parts of [0, span). `full`: the whole cell has that state.
struct cell {
  backing kind = backing::nothing;
  bool full = true;
};
std::vector<cell> cells_of(const picture_row &row, std::uint64_t span, std::size_t cells);

// Lines of at most t.width columns, each with a newline.
std::string draw_in_terminal(const picture &p, const terminal &t);
// One SVG document; readable on light and dark pages.
std::string draw_as_svg(const picture &p);
// Creates missing folders. Errors: exit_failed, naming the path.
outcome<void> write_svg(const picture &p, const std::string &path);
// Writes the field "address_space" into an open object.
void write_json(const picture &p, json_writer &json);

}  // namespace stillmap::tool
