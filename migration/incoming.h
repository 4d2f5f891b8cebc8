// A task on its way here: its addresses, its pages, and what of them has come. Internal.
#pragma once

#include <map>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "stillmap/checkpoint/landed_memory.h"
#include "stillmap/checkpoint/workbench.h"
#include "stillmap/migration/wire.h"

namespace stillmap::migration {

// Threads: arrived() and place_of() from many; the others exclude all.
class incoming {
 public:
  incoming(const device &d, std::uint32_t chunk_bytes, std::uint64_t most_bytes, bool read_back)
      : device_(d), chunk_bytes_(chunk_bytes), most_bytes_(most_bytes), read_back_(read_back) {}

  // Reserves and maps what the source describes; pages that were there before keep what they have.
  // Errors: as reserving, creating and mapping; corrupt. Failure: nothing is left of it.
  status prepare(layout_message l);
  bool prepared() const;

  // Where a chunk belongs. Errors: corrupt (there is none, or not of so many bytes).
  result<virtual_range> place_of(std::uint64_t number) const;
  bool reads_back() const { return reads_back_; }

  // What came of a round, with the digest that it left with (bad: it came otherwise).
  struct piece {
    std::uint64_t number;
    image::digest digest;
    bool bad = false;
  };
  // Requires: all copies are over. Those that are not what they left as. Errors: the driver's.
  result<std::vector<std::uint64_t>> landed(const std::vector<piece> &pieces);

  // Numbers of the chunks that are not as sealed, in the order of the layout. Errors: corrupt (not
  // as many as there are).
  result<std::vector<std::uint64_t>> compare(const std::vector<image::digest> &sealed) const;

  // Requires: compared, and equal. The memory, an owner.
  checkpoint::landed_memory take();

 private:
  struct chunk {
    image::digest has;
    bool known = false;
  };
  struct page {
    page_ref memory;
    std::size_t bytes = 0;
    device_address at;  // on the workbench
    std::vector<chunk> chunks;
  };
  status make_new(const layout_message &l, std::map<std::uint32_t, page> &into) const;
  const page *find(std::uint64_t number, std::uint32_t &index) const;

  const device device_;
  const std::uint32_t chunk_bytes_;
  const std::uint64_t most_bytes_;
  const bool read_back_;
  bool reads_back_ = false;
  mutable std::shared_mutex mutex_;
  std::map<std::uint32_t, page> pages_;  // by the source's numbers
  std::vector<std::uint32_t> numbers_;   // in the order of the layout
  std::optional<checkpoint::workbench> bench_;
  std::optional<checkpoint::landed_memory> memory_;
};

}  // namespace stillmap::migration
