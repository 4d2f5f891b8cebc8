// Writes the extents of an image: digests, compresses, encrypts and stores its chunks.
#pragma once

#include <atomic>
#include <map>

#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/image/contents_source.h"
#include "stillmap/checkpoint/image/internal/seal.h"
#include "stillmap/checkpoint/image/internal/write_queue.h"
#include "stillmap/checkpoint/image/write_options.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::image {

// Writes all extents with several threads and fills in the chunk table. Lock order: mutex_, then what
// on_progress takes.
class extent_writer {
 public:
  // Requires: the arguments outlive it; `table` has been laid out.
  extent_writer(checkpoint::block_file &file, std::vector<chunk_record> &table,
                contents_source &from, const write_options &options, const manifest &what,
                const digest_key &key, const cipher *encrypt_with);
  // Errors: those of the source; operation_canceled; errors of system calls.
  status run();

  std::uint64_t end() const { return next_offset_; }           // file offset after the extents
  const std::vector<sha256> &seals() const { return seals_; }  // by record; only when signing

 private:
  class worker;

  void find_parents(const manifest &what);
  // The first record with this digest; without one, `number`, which is registered as such.
  std::size_t first_equal(const digest &d, std::uint32_t bytes, std::size_t number);
  void report(const chunk_record &r);
  void stop(status result);

  checkpoint::block_file &file_;
  std::vector<chunk_record> &table_;
  contents_source &from_;
  const write_options &options_;
  const digest_key &key_;
  const cipher *encrypt_with_;
  // By record: the record of the parent at the same page offset; SIZE_MAX: none.
  std::vector<std::size_t> in_parent_;
  std::vector<sha256> seals_;

  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> next_offset_{block_bytes};
  std::atomic<bool> stop_{false};
  mutex mutex_;
  std::map<std::pair<digest, std::uint32_t>, std::size_t> known_ STILLMAP_GUARDED_BY(mutex_);
  write_progress progress_ STILLMAP_GUARDED_BY(mutex_);
  status result_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace stillmap::image
