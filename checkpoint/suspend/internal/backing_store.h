// Where the bytes of suspended memory are kept meanwhile.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "stillmap/checkpoint/common/internal/batch_copier.h"
#include "stillmap/checkpoint/common/internal/host_memory.h"
#include "stillmap/checkpoint/suspend/internal/scratch_file.h"

namespace stillmap::checkpoint {

// Threads: externally synchronised.
class contents {
 public:
  virtual ~contents() = default;
  // Host-synchronous. A load can be repeated, also after one that failed.
  virtual status save(transfer &by, std::span<const piece> pieces) = 0;
  virtual status load(transfer &by, std::span<const piece> pieces) = 0;
  // Pinned memory that could serve again, once it is not needed here any more.
  virtual host_memory give_up() = 0;
};

// In one piece of pinned memory, which holds all of it.
class pinned_contents final : public contents {
 public:
  explicit pinned_contents(host_memory arena) : arena_(std::move(arena)) {}
  status save(transfer &by, std::span<const piece> pieces) override;
  status load(transfer &by, std::span<const piece> pieces) override;
  host_memory give_up() override { return std::move(arena_); }

 private:
  host_memory arena_;
};

// In a file, through a few pinned buffers: one for each stream, each with a thread that copies and
// then writes, so that the disk and the copy engine are both busy.
class file_contents final : public contents {
 public:
  // Requires: `buffers` has room for buffer_bytes on each stream that will be used.
  file_contents(scratch_file file, host_memory buffers, std::size_t buffer_bytes)
      : file_(std::move(file)), buffers_(std::move(buffers)), buffer_bytes_(buffer_bytes) {}
  status save(transfer &by, std::span<const piece> pieces) override;
  status load(transfer &by, std::span<const piece> pieces) override;
  host_memory give_up() override { return std::move(buffers_); }

 private:
  scratch_file file_;
  host_memory buffers_;
  std::size_t buffer_bytes_;
};

// Nowhere: what comes back is unspecified.
class no_contents final : public contents {
 public:
  status save(transfer &, std::span<const piece>) override { return {}; }
  status load(transfer &, std::span<const piece>) override { return {}; }
  host_memory give_up() override { return {}; }
};

}  // namespace stillmap::checkpoint
