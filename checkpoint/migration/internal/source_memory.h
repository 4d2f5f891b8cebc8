// Memory of a task at the source: its chunks, which of them the destination has, and which of
// those have changed since.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/snapshot/chunk_digests.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::migration {

// Pages are read at the task's own addresses: through a second mapping, writes would become
// visible in no defined order (CUDA C++ Programming Guide, "Virtual Aliasing Support"). Therefore
// a thread that unmaps a page waits until reads of it have ended, and unmapped pages are skipped
// until the next update().
// Threads: externally synchronised; different chunks may be read and marked concurrently.
class source_memory {
 public:
  struct chunk {
    std::uint64_t number;
    virtual_range at;  // one of its mappings that the device may read
    image::digest sent;
    bool known = false;  // whether the destination has the contents that `sent` is the digest of
  };

  // `key`: of the chunks' digests.
  source_memory(const device &d, std::span<const std::string> tags, std::uint32_t chunk_bytes,
                const image::digest_key &key);

  // Reads the ledger again; returns whether the layout has changed. Pages keep their numbers and
  // the state of their chunks.
  // Ensures: failure: nothing changed.
  // Errors:  as checkpoint::describe().
  result<bool> update();

  const checkpoint::described_memory &memory() const { return memory_; }
  layout_message layout() const { return {memory_.layout, numbers_}; }
  std::vector<chunk> &chunks() { return chunks_; }
  const std::vector<chunk> &chunks() const { return chunks_; }
  std::uint64_t bytes() const { return bytes_; }
  const image::digest_key &key() const { return key_; }

  // Begins to read a range, if it is still mapped; every call that returns true needs an end_read().
  // Errors: out_of_memory.
  result<bool> begin_read(virtual_range r);
  void end_read(virtual_range r) noexcept;

  // Those of `chunks` whose contents the destination does not have.
  // Requires: prepare_digests() has succeeded.
  // Errors:   the driver's; not_supported (the device cannot compute these digests).
  // Threads:  reads, and marking other chunks, may go on concurrently.
  result<std::vector<std::size_t>> changed(std::span<const std::size_t> chunks);
  // Loads the digest kernel and tries it on one chunk.
  // Errors: the driver's; not_supported (the device cannot compute digests).
  status prepare_digests();
  std::vector<std::size_t> all() const;
  // About `n` evenly spaced chunks.
  std::vector<std::size_t> sample(std::size_t n) const;

 private:
  result<bool> take(checkpoint::described_memory seen);
  bool same_as(const checkpoint::memory_layout &l, const std::vector<page_ptr> &pages) const;
  std::vector<chunk> list_chunks(const checkpoint::memory_layout &l,
                                 const std::vector<std::uint32_t> &numbers,
                                 const std::vector<device_address> &at) const;

  const device device_;
  const std::vector<std::string> tags_;
  const std::uint32_t chunk_bytes_;
  const image::digest_key key_;
  checkpoint::described_memory memory_;
  std::vector<std::uint32_t> numbers_;  // of the layout's pages
  std::uint32_t next_number_ = 0;
  std::vector<chunk> chunks_;
  std::uint64_t bytes_ = 0;
  std::optional<snapshot::chunk_digester> digester_;

  // Ranges that are being read, and those unmapped since the last update(). Shared with the
  // callback, which may outlive this object.
  struct read_gate {
    explicit read_gate(std::vector<std::string> t) : tags(std::move(t)) {}
    const std::vector<std::string> tags;
    stillmap::mutex mutex;
    condition_variable reads_ended;
    std::vector<virtual_range> reads STILLMAP_GUARDED_BY(mutex);    // by begin_read()
    std::vector<virtual_range> digests STILLMAP_GUARDED_BY(mutex);  // by changed()
    std::vector<virtual_range> unmapped STILLMAP_GUARDED_BY(mutex);
    // Ranges unmapped for which there was no memory in the list.
    std::size_t unknown STILLMAP_GUARDED_BY(mutex) = 0;

    bool is_unmapped(virtual_range r) const STILLMAP_REQUIRES(mutex);
    void about_to_change(const backing_event &e) noexcept;
  };
  const std::shared_ptr<read_gate> gate_;
  const address_space::subscription subscription_;
};

}  // namespace stillmap::migration
