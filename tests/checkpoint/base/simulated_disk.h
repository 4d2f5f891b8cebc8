// A disk that loses what was not synced. The files are in memory; a crash keeps any part of what was
// written since the last sync of a file, and any of the changes of names since that of a directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/base/file_system.h"

namespace stillmap::checkpoint {

// What a crash leaves of changes that are not durable.
enum class left_by_crash { nothing, everything, some };

// Threads: safe.
class simulated_disk final : public file_system {
 public:
  static constexpr std::size_t never = SIZE_MAX;
  // The power goes before the n-th call that changes something, counted from now: that call and all
  // later ones fail, and do nothing.
  void lose_power_at(std::size_t call);
  // The n-th sync, counted from now, fails once; what it was to make durable counts as synced, as
  // Linux has it, and a later sync does not write it.
  void fail_sync_at(std::size_t sync);
  // The n-th sync, counted from now, does nothing and succeeds: a program without that sync.
  void ignore_sync_at(std::size_t sync);
  std::size_t changes() const { return changes_; }
  std::size_t syncs() const { return syncs_; }

  void make_directories(const std::string &path);  // durably
  // The disk after a crash now.
  std::unique_ptr<simulated_disk> after_crash(left_by_crash left, std::mt19937 &random) const;

  int open_at(int directory, const char *name, int flags, unsigned mode) override;
  int close(int fd) override;
  long write_at(int fd, const void *from, std::size_t bytes, std::uint64_t offset) override;
  long read_at(int fd, void *to, std::size_t bytes, std::uint64_t offset) override;
  int sync_data(int fd) override { return sync(fd); }
  int sync(int fd) override;
  int preallocate(int fd, std::uint64_t bytes) override;
  int truncate(int fd, std::uint64_t bytes) override;
  int drop_cached(int) override { return 0; }
  int set_flags(int, int) override { return 0; }
  int lock(int fd) override;
  int status(int fd, struct stat *to) override;
  int status_at(int directory, const char *name, struct stat *to) override;
  int rename_at(int directory, const char *from, const char *to, unsigned flags) override;
  int link_at(int directory, const char *from, const char *to) override;
  int unlink_at(int directory, const char *name) override;
  int make_directory_at(int directory, const char *name, unsigned mode) override;
  int remove_directory_at(int directory, const char *name) override;
  bool is_in_memory(int) override { return false; }
  int names_in(int directory, std::vector<std::string> &names) override;
  bool may_use_ring() override { return false; }

 private:
  using bytes = std::vector<std::byte>;
  using names = std::map<std::string, std::size_t>;  // to inodes
  static constexpr std::size_t none = 0;             // no inode

  // Of a file: bytes at an offset; or its size, with no bytes.
  struct change {
    std::uint64_t offset = 0;
    bytes written;
  };
  // Of a directory: names that lead elsewhere, or to none, at once.
  using renaming = std::vector<std::pair<std::string, std::size_t>>;
  struct inode {
    bool directory = false;
    bytes now, durable;
    std::vector<change> unsynced, failed;  // failed: a sync of these has failed
    names names_now, names_durable;
    std::vector<renaming> names_unsynced;
    int locked_by = -1;
  };

  static inode new_directory() {
    inode i;
    i.directory = true;
    return i;
  }
  static void apply(bytes &to, const change &c);
  static void apply(names &to, const renaming &r);
  int may_change();  // 0, or what the call fails with
  int change_file(int fd, change c);
  void change_names(std::size_t directory, renaming r);
  std::size_t open_inode(int fd) const;  // none: not open
  std::size_t start_of(int directory, const char *&name) const;
  std::size_t find(int directory, const char *name) const;  // none: there is nothing
  // The directory and the last part of a path.
  std::size_t parent(int directory, const char *name, std::string &last) const;
  std::vector<std::size_t> directories_of(std::size_t number) const;  // one for each of its names
  void fill(struct stat *to, std::size_t number) const;

  mutable std::mutex mutex_;
  std::vector<inode> inodes_ = std::vector<inode>(2, new_directory());  // 1: the root
  std::map<int, std::size_t> open_;
  int next_fd_ = 1 << 20;
  std::size_t changes_ = 0, syncs_ = 0;
  std::size_t power_ = never, failing_sync_ = never, ignored_sync_ = never;
};

}  // namespace stillmap::checkpoint
