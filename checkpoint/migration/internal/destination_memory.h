// Memory of an arriving task at the destination: its addresses, its pages, and the chunks received.
#pragma once

#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/common/page_factory.h"
#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/common/staging_mapping.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::migration {

// A thread creates pages while the contents of earlier ones arrive: creating pages takes a good
// part of the time that a fast network takes to fill them.
// Threads: begin_round(), range_of(), received(), end_round() and close_rounds() are safe; the others
//          exclude each other.
class destination_memory {
 public:
  destination_memory(const device &d, std::uint32_t chunk_bytes, std::uint64_t max_bytes)
      : device_(d), chunk_bytes_(chunk_bytes), max_bytes_(max_bytes) {}
  destination_memory(const destination_memory &) = delete;
  destination_memory &operator=(const destination_memory &) = delete;
  ~destination_memory() { stop_page_thread(); }

  // Reserves the addresses of a layout and begins to create its pages. Pages of the previous
  // layout keep their contents.
  // Ensures: failure: nothing is reserved.
  // Errors:  as restored_memory::reserve(); out_of_memory (larger than the device or max_bytes),
  //          not_supported (kinds of pages), corrupt (also: during a round).
  status prepare(layout_message l);
  bool prepared() const;

  // Rounds: the layout does not change between these. Returns the number of its chunks.
  // Errors: corrupt (no layout is prepared; rounds are closed).
  result<std::size_t> begin_round();
  void end_round();
  // No round begins after this: nothing is written to the memory any more.
  // Errors: corrupt (a round is under way).
  status close_rounds();

  // The range to write a chunk to. Waits until its page exists.
  // Requires: within a round.
  // Errors:   corrupt (no such chunk), as creating and mapping its page.
  result<virtual_range> range_of(std::uint64_t chunk);
  // A chunk's contents are in place, and match digest `d`.
  void received(std::uint64_t chunk, const image::digest &d);

  // The chunks that differ from these digests, which are in the order of the layout. Waits until
  // all pages are mapped at their final addresses.
  // Errors: corrupt (another number of chunks; a round is under way), as creating and mapping pages.
  result<std::vector<std::uint64_t>> compare(const std::vector<image::digest> &sealed) const;

  // Passes on ownership of the memory.
  // Requires: compare() has found no difference; close_rounds() has succeeded.
  checkpoint::restored_memory take();

 private:
  struct chunk_state {
    image::digest digest;
    bool known = false;
  };
  struct page {
    page_ptr memory;
    std::size_t bytes = 0;
    device_address at;  // in the staging mapping; null until the page is mapped there
    std::vector<chunk_state> chunks;
  };
  status check_between_rounds(const char *otherwise) const STILLMAP_REQUIRES(mutex_);
  status reserve(layout_message l) STILLMAP_EXCLUDES(mutex_);
  void create_pages(checkpoint::page_factory factory, std::size_t pages,
                    const std::stop_token &stop) noexcept;
  status fail_pages(const error &why) noexcept STILLMAP_EXCLUDES(mutex_);
  status create_batch(checkpoint::page_factory &factory, std::size_t first, std::size_t count);
  // The thread takes the lock.
  void stop_page_thread() STILLMAP_EXCLUDES(mutex_);
  // Nullopt: no such chunk.
  std::optional<std::pair<page *, std::uint32_t>> find(std::uint64_t chunk)
      STILLMAP_REQUIRES(mutex_);

  const device device_;
  const std::uint32_t chunk_bytes_;
  const std::uint64_t max_bytes_;

  mutable mutex mutex_;
  mutable condition_variable pages_changed_;
  std::size_t rounds_ STILLMAP_GUARDED_BY(mutex_) = 0;  // under way
  bool rounds_closed_ STILLMAP_GUARDED_BY(mutex_) = false;
  std::map<std::uint32_t, page> pages_ STILLMAP_GUARDED_BY(mutex_);  // by the source's numbers
  std::vector<std::uint32_t> numbers_ STILLMAP_GUARDED_BY(mutex_);   // in the order of the layout
  std::optional<checkpoint::staging_mapping> staging_ STILLMAP_GUARDED_BY(mutex_);
  std::optional<checkpoint::restored_memory> memory_ STILLMAP_GUARDED_BY(mutex_);
  status page_status_ STILLMAP_GUARDED_BY(mutex_);       // of the page thread
  bool all_mapped_ STILLMAP_GUARDED_BY(mutex_) = false;  // at their final addresses
  std::jthread page_thread_;
};

}  // namespace stillmap::migration
