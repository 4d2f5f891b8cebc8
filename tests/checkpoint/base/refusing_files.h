// A file system of which selected calls fail.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/file_system.h"

namespace stillmap::checkpoint {

enum class call {
  open,
  close,
  write,
  read,
  sync_data,
  sync,
  set_aside,
  truncate,
  drop_cached,
  set_flags,
  lock,
  status,
  status_at,
  rename,
  link,
  unlink,
  make_folder,
  remove_folder,
  ring
};

// Counts calls and lets one fail. Later calls succeed again, unless `for_good`.
class refusing_files final : public file_system {
 public:
  static constexpr int half = -1'000'000;  // no error: only half of it is written or read

  bool ring = true;
  std::size_t refuse_at = SIZE_MAX;  // which call, from 0
  int with = EIO;
  bool for_good = false;
  std::optional<call> only;  // counts only these

  std::size_t counted() const { return count_; }
  std::optional<call> refused() const { return refused_; }
  // The data written since the last sync.
  std::atomic<std::size_t> unsure_at_rename{0}, renames{0};

  int open_at(int d, const char *n, int f, unsigned m) override {
    // Searching for left-overs may fail.
    const int r = std::string_view(n) == "." ? 0 : pick(call::open);
    return r != 0 ? r : file_system::open_at(d, n, f, m);
  }
  int close(int fd) override {
    const int r = pick(call::close);
    const int closed = file_system::close(fd);  // as the system does, whatever it says
    return r != 0 ? r : closed;
  }
  long write_at(int fd, const void *p, std::size_t n, std::uint64_t o) override {
    ++unsure_;
    const int r = pick(call::write);
    if (r == half && n > io_block_bytes) n /= 2;
    return r != 0 && r != half ? r : file_system::write_at(fd, p, n, o);
  }
  long read_at(int fd, void *p, std::size_t n, std::uint64_t o) override {
    const int r = pick(call::read);
    if (r == half && n > io_block_bytes) n /= 2;
    return r != 0 && r != half ? r : file_system::read_at(fd, p, n, o);
  }
  int sync_data(int fd) override {
    const int r = pick(call::sync_data);
    if (r == 0) unsure_ = 0;
    return r != 0 ? r : file_system::sync_data(fd);
  }
  int sync(int fd) override {
    const int r = pick(call::sync);
    return r != 0 ? r : file_system::sync(fd);
  }
  int preallocate(int fd, std::uint64_t n) override {
    const int r = pick(call::set_aside);
    return r != 0 ? r : file_system::preallocate(fd, n);
  }
  int truncate(int fd, std::uint64_t n) override {
    ++unsure_;
    const int r = pick(call::truncate);
    return r != 0 ? r : file_system::truncate(fd, n);
  }
  int drop_cached(int fd) override {
    const int r = pick(call::drop_cached);
    return r != 0 ? r : file_system::drop_cached(fd);
  }
  int set_flags(int fd, int f) override {
    const int r = pick(call::set_flags);
    return r != 0 ? r : file_system::set_flags(fd, f);
  }
  int lock(int fd) override {
    const int r = pick(call::lock);
    return r != 0 ? r : file_system::lock(fd);
  }
  int status(int fd, struct stat *s) override {
    const int r = pick(call::status);
    return r != 0 ? r : file_system::status(fd, s);
  }
  int status_at(int d, const char *n, struct stat *s) override {
    const int r = pick(call::status_at);
    return r != 0 ? r : file_system::status_at(d, n, s);
  }
  int rename_at(int d, const char *a, const char *b, unsigned f) override {
    ++renames;
    unsure_at_rename += unsure_;
    const int r = pick(call::rename);
    return r != 0 ? r : file_system::rename_at(d, a, b, f);
  }
  int link_at(int d, const char *a, const char *b) override {
    const int r = pick(call::link);
    return r != 0 ? r : file_system::link_at(d, a, b);
  }
  int unlink_at(int d, const char *n) override {
    const int r = pick(call::unlink);
    return r != 0 ? r : file_system::unlink_at(d, n);
  }
  int make_directory_at(int d, const char *n, unsigned m) override {
    const int r = pick(call::make_folder);
    return r != 0 ? r : file_system::make_directory_at(d, n, m);
  }
  int remove_directory_at(int d, const char *n) override {
    const int r = pick(call::remove_folder);
    return r != 0 ? r : file_system::remove_directory_at(d, n);
  }
  bool may_use_ring() override { return ring; }
  int ring_wrote(int result, std::size_t n) override {
    ++unsure_;
    const int r = pick(call::ring);
    // The data was written nevertheless: a torn write stored a part only.
    if (r == half) return static_cast<int>(n / 2);
    return r != 0 ? r : result;
  }

 private:
  int pick(call c) {
    const std::lock_guard lock_of_counts(mutex_);
    if (only && *only != c) return 0;
    const std::size_t n = count_++;
    if (for_good ? n < refuse_at : n != refuse_at) return 0;
    // ENOSPC is a result of writing calls only.
    if (for_good && c != call::write && c != call::ring && c != call::set_aside) return 0;
    const bool halves = c == call::write || c == call::read || c == call::ring;
    if (with == half && !halves) return 0;
    refused_ = c;
    return with == half ? half : -with;
  }

  std::mutex mutex_;
  std::size_t count_ = 0;
  std::atomic<std::size_t> unsure_{0};
  std::optional<call> refused_;
};

}  // namespace stillmap::checkpoint
