// Stores for the contents of suspended memory: pinned host memory, a file, or none.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "stillmap/checkpoint/common/batch_copier.h"
#include "stillmap/checkpoint/common/host_memory.h"
#include "stillmap/checkpoint/suspend/internal/scratch_file.h"

namespace stillmap::checkpoint {

// Threads: externally synchronised.
class contents_store {
 public:
  virtual ~contents_store() = default;
  // Copy all pieces from or to the device; host-synchronous. load() can be repeated, also after a
  // failure.
  virtual status save(batch_copier &copier, std::span<const piece> pieces) = 0;
  virtual status load(batch_copier &copier, std::span<const piece> pieces) = 0;
  // Returns the pinned memory of a store that is no longer needed, for reuse.
  virtual host_memory take_pinned() = 0;
};

// One pinned allocation that holds all contents.
class pinned_store final : public contents_store {
 public:
  explicit pinned_store(host_memory memory) : memory_(std::move(memory)) {}
  status save(batch_copier &copier, std::span<const piece> pieces) override;
  status load(batch_copier &copier, std::span<const piece> pieces) override;
  host_memory take_pinned() override { return std::move(memory_); }

 private:
  host_memory memory_;
};

// A file, through one pinned buffer for each stream. Each stream has a thread that alternates
// between copying and file access, so that the disk and the copy engine are busy at the same time.
class file_store final : public contents_store {
 public:
  // Requires: `buffers` has `buffer_bytes` for each stream of the copiers.
  file_store(scratch_file file, host_memory buffers, std::size_t buffer_bytes)
      : file_(std::move(file)), buffers_(std::move(buffers)), buffer_bytes_(buffer_bytes) {}
  status save(batch_copier &copier, std::span<const piece> pieces) override;
  status load(batch_copier &copier, std::span<const piece> pieces) override;
  host_memory take_pinned() override { return std::move(buffers_); }

 private:
  scratch_file file_;
  host_memory buffers_;
  std::size_t buffer_bytes_;
};

// Keeps nothing: resumed memory has unspecified contents.
class discarding_store final : public contents_store {
 public:
  status save(batch_copier &, std::span<const piece>) override { return {}; }
  status load(batch_copier &, std::span<const piece>) override { return {}; }
  host_memory take_pinned() override { return {}; }
};

}  // namespace stillmap::checkpoint
