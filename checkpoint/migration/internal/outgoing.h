// The memory that is to go: its chunks, what of them the other side has, and what has changed
// since. Internal.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/snapshot/internal/chunk_digests.h"

namespace stillmap::migration {

// Pages are read where the task has them: a second address would show what others write through the
// first in no order (CUDA Programming Guide, Virtual Aliasing Support). So whoever takes pages away
// from there meanwhile waits until what is being read is through, and nothing is read there any
// more before the next look().
//
// Threads: externally synchronised; chunks that differ may be read and marked at the same time.
class outgoing {
 public:
  struct chunk {
    std::uint64_t number;
    virtual_range at;  // one of its places at which the device may read it
    image::digest sent;
    bool known = false;  // `sent` is what the other side has
  };

  outgoing(const device &d, std::vector<std::string> tags, std::uint32_t chunk_bytes);

  // Looks at the ledger again. Pages that were there before keep their numbers and what is known
  // about them. Whether anything is different. Errors: as checkpoint::describe. Failure: as before.
  result<bool> look();

  const checkpoint::described_memory &memory() const { return what_; }
  layout_message layout() const { return {what_.layout, numbers_}; }
  std::vector<chunk> &chunks() { return chunks_; }
  const std::vector<chunk> &chunks() const { return chunks_; }
  std::uint64_t bytes() const { return bytes_; }

  // Whether it may be read now; then until leave(), which has to come.
  bool enter(virtual_range r);
  void leave(virtual_range r);

  // Those of `which` that are not what the other side has. Requires: prepare_digests() was good.
  // Errors: the driver's; not_supported (the device makes no digests of these chunks).
  // Others may enter(), leave() and mark chunks that are not of `which` meanwhile.
  result<std::vector<std::size_t>> changed(std::span<const std::size_t> which);
  // Makes ready for changed(). Errors: the driver's; not_supported (the device makes no digests).
  status prepare_digests();
  std::vector<std::size_t> all() const;
  // Every so many, for a guess: about `n`.
  std::vector<std::size_t> some(std::size_t n) const;

 private:
  result<bool> take(checkpoint::described_memory seen);
  bool same_as(const checkpoint::memory_layout &l, const std::vector<page_ptr> &pages) const;
  void list_chunks(const std::vector<device_address> &at);

  const device device_;
  const std::vector<std::string> tags_;
  const std::uint32_t chunk_bytes_;
  checkpoint::described_memory what_;
  std::vector<std::uint32_t> numbers_;  // of the layout's pages
  std::uint32_t next_number_ = 0;
  std::vector<chunk> chunks_;
  std::uint64_t bytes_ = 0;
  std::optional<snapshot::chunk_digester> digester_;

  // What is read now, and what is not there any more since the last look. Shared with the callback,
  // which may be running when this goes.
  struct gate {
    explicit gate(std::vector<std::string> t) : tags(std::move(t)) {}
    const std::vector<std::string> tags;
    std::mutex mutex;
    std::condition_variable left;
    // Read one by one; all of them by changed(); not there any more.
    std::vector<virtual_range> read, looked_at, gone;

    bool is_gone(virtual_range r) const;  // requires the mutex
    void going(const backing_event &e);
  };
  const std::shared_ptr<gate> gate_;
  const address_space::subscription watching_;
};

}  // namespace stillmap::migration
