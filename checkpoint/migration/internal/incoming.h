// A task on its way here: its addresses, its pages, and what of them has come. Internal.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/common/internal/page_factory.h"
#include "stillmap/checkpoint/common/internal/staging_mapping.h"
#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/migration/internal/wire.h"

namespace stillmap::migration {

// Pages are made while the contents of the first ones come: making them takes a good part of the
// time that a fast link takes to fill them.
//
// Threads: begin_round(), place_of(), landed() and end_round() from many; the others exclude each
// other.
class incoming {
 public:
  incoming(const device &d, std::uint32_t chunk_bytes, std::uint64_t most_bytes)
      : device_(d), chunk_bytes_(chunk_bytes), most_bytes_(most_bytes) {}
  incoming(const incoming &) = delete;
  incoming &operator=(const incoming &) = delete;
  ~incoming() { stop_making(); }

  // Reserves what the source describes, and begins to make its pages; those that were there before
  // keep what they have. Errors: as reserving; out_of_memory (more than the device or this receiver
  // has, ever), not_supported (kinds of pages), corrupt (also: in the middle of a round).
  // Failure: nothing is left of it.
  status prepare(layout_message l);
  bool prepared() const;

  // Between these the layout stays as it is: how many chunks it has.
  // Errors: corrupt (nothing is prepared).
  result<std::size_t> begin_round();
  void end_round();

  // Where a chunk belongs, to be written; waits until its page is there. Requires: in a round.
  // Errors: corrupt (there is none), as making and mapping its page.
  result<virtual_range> place_of(std::uint64_t number);
  // It is there as it left: with this digest.
  void landed(std::uint64_t number, const image::digest &d);

  // Numbers of the chunks that are not as sealed, in the order of the layout; waits until all is
  // mapped where it belongs. Errors: corrupt (not as many as there are), as making and mapping.
  result<std::vector<std::uint64_t>> compare(const std::vector<image::digest> &sealed) const;

  // Requires: compared, and equal. The memory, an owner.
  checkpoint::restored_memory take();

 private:
  struct chunk {
    image::digest has;
    bool known = false;
  };
  struct page {
    page_ptr memory;
    std::size_t bytes = 0;
    device_address at;  // on the staging_mapping, once it is there
    std::vector<chunk> chunks;
  };
  status between_rounds() const;  // requires the mutex
  status reserve(layout_message l);
  void make(checkpoint::page_maker by, const std::stop_token &stop);
  status make_some(checkpoint::page_maker &by, std::size_t first, std::size_t end);
  void stop_making();
  // Requires the mutex. Nothing: there is no such chunk.
  std::optional<std::pair<page *, std::uint32_t>> find(std::uint64_t number);

  const device device_;
  const std::uint32_t chunk_bytes_;
  const std::uint64_t most_bytes_;

  mutable std::mutex mutex_;
  mutable std::condition_variable made_;
  std::size_t rounds_ = 0;               // under way
  std::map<std::uint32_t, page> pages_;  // by the source's numbers
  std::vector<std::uint32_t> numbers_;   // in the order of the layout
  std::optional<checkpoint::staging_mapping> bench_;
  std::optional<checkpoint::restored_memory> memory_;
  status making_;           // why it ended, where it failed
  bool all_there_ = false;  // and where they belong
  std::jthread maker_;
};

}  // namespace stillmap::migration
