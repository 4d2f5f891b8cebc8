// Chunks on their way into the file: looked at, compressed, encrypted, written.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "stillmap/checkpoint/image/internal/seal.h"
#include "stillmap/checkpoint/image/internal/write_queue.h"
#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::image {

// Writes all extents of an image with a few threads, and fills in the table.
class extent_writer {
 public:
  // Requires: all outlive it; `table` is laid out.
  extent_writer(image_file &file, std::vector<chunk_record> &table, contents_source &from,
                const write_options &how, const manifest &what, const cipher *sealed_with);
  // Errors: the source's, the system's, operation_canceled.
  done run();

  std::uint64_t end() const { return next_offset_; }           // of the extents, in the file
  const std::vector<sha256> &seals() const { return seals_; }  // by record; only when signing

 private:
  class worker;

  void find_parents(const manifest &what);
  // An earlier record with that digest; else the number itself, which from now on is one.
  std::size_t first_with(const digest &d, std::uint32_t bytes, std::size_t number);
  bool report(const chunk_record &r);
  void end_with(done why);

  image_file &file_;
  std::vector<chunk_record> &table_;
  contents_source &from_;
  const write_options &how_;
  const cipher *sealed_with_;
  std::vector<std::size_t>
      in_parent_;  // by record: the parent's for the same place; SIZE_MAX: none
  std::vector<sha256> seals_;

  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> next_offset_{block_bytes};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // of what follows
  std::map<std::pair<digest, std::uint32_t>, std::size_t> known_;
  write_progress progress_;
  done result_;
};

}  // namespace stillmap::image
