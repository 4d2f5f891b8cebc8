#include "tests/checkpoint/base/simulated_disk.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace stillmap::checkpoint {
namespace {

constexpr std::size_t sector = 512;  // written as a whole or not at all

}  // namespace

void simulated_disk::lose_power_at(std::size_t call) {
  changes_ = 0;
  power_ = call;
}
void simulated_disk::fail_sync_at(std::size_t sync) {
  syncs_ = 0;
  failing_sync_ = sync;
}
void simulated_disk::ignore_sync_at(std::size_t sync) {
  syncs_ = 0;
  ignored_sync_ = sync;
}

void simulated_disk::apply(bytes &to, const change &c) {
  if (c.written.empty()) return to.resize(c.offset);
  to.resize(std::max<std::size_t>(to.size(), c.offset + c.written.size()));
  std::copy(c.written.begin(), c.written.end(), to.begin() + static_cast<std::ptrdiff_t>(c.offset));
}
void simulated_disk::apply(names &to, const renaming &r) {
  for (const auto &[name, inode] : r) {
    if (inode == none) {
      to.erase(name);
    } else {
      to[name] = inode;
    }
  }
}

int simulated_disk::may_change() {
  return changes_++ >= power_ ? -EIO : 0;
}

std::size_t simulated_disk::open_inode(int fd) const {
  const auto found = open_.find(fd);
  return found == open_.end() ? none : found->second;
}

std::size_t simulated_disk::start_of(int directory, const char *&name) const {
  if (*name != '/') return directory == AT_FDCWD ? 1 : open_inode(directory);
  ++name;
  return 1;
}

std::size_t simulated_disk::parent(int directory, const char *name, std::string &last) const {
  std::size_t at = start_of(directory, name);
  std::string_view left = name;
  for (;;) {
    while (left.starts_with('/')) left.remove_prefix(1);
    const std::size_t slash = left.find('/');
    last = left.substr(0, slash);
    if (slash == std::string_view::npos || left.find_first_not_of('/', slash) == left.npos) {
      return at;
    }
    const auto next = inodes_[at].names_now.find(last);
    if (next == inodes_[at].names_now.end()) return none;
    at = next->second;
    left.remove_prefix(slash);
  }
}

std::size_t simulated_disk::find(int directory, const char *name) const {
  std::string last;
  const std::size_t in = parent(directory, name, last);
  if (in == none || last.empty() || last == ".") return in;
  if (last == "..") {
    const auto above = directories_of(in);
    return above.empty() ? in : above.front();
  }
  const auto found = inodes_[in].names_now.find(last);
  return found == inodes_[in].names_now.end() ? none : found->second;
}

void simulated_disk::make_directories(const std::string &path) {
  const std::lock_guard lock(mutex_);
  std::size_t at = 1;
  for (std::size_t from = 1; from < path.size();) {
    const std::size_t end = std::min(path.find('/', from), path.size());
    const std::string name = path.substr(from, end - from);
    from = end + 1;
    if (name.empty()) continue;
    if (!inodes_[at].names_now.contains(name)) {
      inodes_.push_back(new_directory());
      inodes_[at].names_now[name] = inodes_[at].names_durable[name] = inodes_.size() - 1;
    }
    at = inodes_[at].names_now[name];
  }
}

std::unique_ptr<simulated_disk> simulated_disk::after_crash(left_by_crash left,
                                                            std::mt19937 &random) const {
  const std::lock_guard lock(mutex_);
  const auto stays = [&] {
    return left == left_by_crash::everything || (left == left_by_crash::some && random() % 2 == 0);
  };
  auto out = std::make_unique<simulated_disk>();
  out->inodes_.clear();
  for (const inode &was : inodes_) {
    inode is;
    is.directory = was.directory;
    is.durable = was.durable;
    for (const auto *const changes : {&was.failed, &was.unsynced}) {
      for (const change &c : *changes) {
        if (!stays()) continue;
        if (c.written.empty() || random() % 2 == 0 || left == left_by_crash::everything) {
          apply(is.durable, c);
          continue;
        }
        for (std::size_t at = 0; at < c.written.size(); at += sector) {  // torn
          const auto begin = c.written.begin() + static_cast<std::ptrdiff_t>(at);
          const auto n = static_cast<std::ptrdiff_t>(std::min(sector, c.written.size() - at));
          if (stays()) apply(is.durable, {c.offset + at, bytes(begin, begin + n)});
        }
      }
    }
    is.now = is.durable;
    is.names_durable = was.names_durable;
    // Changes of different names may be reordered: any of them may be missing.
    for (const renaming &r : was.names_unsynced) {
      if (stays()) apply(is.names_durable, r);
    }
    is.names_now = is.names_durable;
    out->inodes_.push_back(std::move(is));
  }
  return out;
}

int simulated_disk::open_at(int directory, const char *name, int flags, unsigned) {
  const std::lock_guard lock(mutex_);
  std::size_t found = find(directory, name);
  if (found == none) {
    if ((flags & O_CREAT) == 0) return -ENOENT;
    std::string last;
    const std::size_t in = parent(directory, name, last);
    if (in == none) return -ENOENT;
    if (const int r = may_change(); r != 0) return r;
    inodes_.emplace_back();
    found = inodes_.size() - 1;
    change_names(in, {{last, found}});
  } else {
    if ((flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) return -EEXIST;
    if ((flags & O_DIRECTORY) != 0 && !inodes_[found].directory) return -ENOTDIR;
    if ((flags & O_TRUNC) != 0 && !inodes_[found].now.empty()) {
      if (const int r = may_change(); r != 0) return r;
      inodes_[found].now.clear();
      inodes_[found].unsynced.emplace_back();
    }
  }
  open_[next_fd_] = found;
  return next_fd_++;
}

int simulated_disk::close(int fd) {
  const std::lock_guard lock(mutex_);
  const std::size_t of = open_inode(fd);
  if (of == none) return -EBADF;
  if (inodes_[of].locked_by == fd) inodes_[of].locked_by = -1;
  open_.erase(fd);
  return 0;
}

int simulated_disk::change_file(int fd, change c) {
  const std::lock_guard lock(mutex_);
  const std::size_t of = open_inode(fd);
  if (of == none) return -EBADF;
  if (const int r = may_change(); r != 0) return r;
  apply(inodes_[of].now, c);
  inodes_[of].unsynced.push_back(std::move(c));
  return 0;
}

void simulated_disk::change_names(std::size_t directory, renaming r) {
  apply(inodes_[directory].names_now, r);
  inodes_[directory].names_unsynced.push_back(std::move(r));
}

long simulated_disk::write_at(int fd, const void *from, std::size_t n, std::uint64_t offset) {
  if (n == 0) return 0;
  const auto *const begin = static_cast<const std::byte *>(from);
  const int r = change_file(fd, {offset, bytes(begin, begin + n)});
  return r != 0 ? r : static_cast<long>(n);
}

long simulated_disk::read_at(int fd, void *to, std::size_t n, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  const std::size_t of = open_inode(fd);
  if (of == none) return -EBADF;
  const bytes &from = inodes_[of].now;
  if (offset >= from.size()) return 0;
  n = std::min<std::size_t>(n, from.size() - offset);
  std::memcpy(to, from.data() + offset, n);
  return static_cast<long>(n);
}

int simulated_disk::preallocate(int fd, std::uint64_t n) {
  {
    const std::lock_guard lock(mutex_);
    const std::size_t of = open_inode(fd);
    if (of != none && inodes_[of].now.size() >= n) return 0;
  }
  return change_file(fd, {n, {}});
}
int simulated_disk::truncate(int fd, std::uint64_t n) {
  return change_file(fd, {n, {}});
}

int simulated_disk::sync(int fd) {
  const std::lock_guard lock(mutex_);
  const std::size_t of = open_inode(fd);
  if (of == none) return -EBADF;
  if (const int r = may_change(); r != 0) return r;
  const std::size_t nth = syncs_++;
  if (nth == ignored_sync_) return 0;
  inode &i = inodes_[of];
  if (nth == failing_sync_) {
    i.failed.insert(i.failed.end(), i.unsynced.begin(), i.unsynced.end());
    i.unsynced.clear();
    return -EIO;
  }
  for (const change &c : i.unsynced) apply(i.durable, c);
  i.unsynced.clear();
  for (const renaming &r : i.names_unsynced) apply(i.names_durable, r);
  i.names_unsynced.clear();
  return 0;
}

int simulated_disk::lock(int fd) {
  const std::lock_guard lock(mutex_);
  const std::size_t of = open_inode(fd);
  if (of == none) return -EBADF;
  int &by = inodes_[of].locked_by;
  if (by != -1 && by != fd) return -EWOULDBLOCK;
  by = fd;
  return 0;
}

std::vector<std::size_t> simulated_disk::directories_of(std::size_t number) const {
  std::vector<std::size_t> out;
  for (std::size_t i = 1; i < inodes_.size(); ++i) {
    for (const auto &entry : inodes_[i].names_now) {
      if (entry.second == number) out.push_back(i);
    }
  }
  return out;
}

void simulated_disk::fill(struct stat *to, std::size_t number) const {
  const inode &of = inodes_[number];
  *to = {};
  to->st_nlink = directories_of(number).size();
  to->st_ino = number;
  to->st_dev = 1;
  to->st_mode = of.directory ? S_IFDIR | 0700 : S_IFREG | 0600;
  to->st_size = static_cast<off_t>(of.now.size());
}
int simulated_disk::status(int fd, struct stat *to) {
  const std::lock_guard lock(mutex_);
  const std::size_t of = open_inode(fd);
  if (of == none) return -EBADF;
  fill(to, of);
  return 0;
}
int simulated_disk::status_at(int directory, const char *name, struct stat *to) {
  const std::lock_guard lock(mutex_);
  const std::size_t of = find(directory, name);
  if (of == none) return -ENOENT;
  fill(to, of);
  return 0;
}

int simulated_disk::rename_at(int directory, const char *from, const char *to, unsigned flags) {
  const std::lock_guard lock(mutex_);
  const std::size_t source = find(directory, from), target = find(directory, to);
  const std::size_t in = open_inode(directory);
  if (source == none || in == none) return -ENOENT;
  if ((flags & RENAME_NOREPLACE) != 0 && target != none) return -EEXIST;
  if ((flags & RENAME_EXCHANGE) != 0 && target == none) return -ENOENT;
  if (const int r = may_change(); r != 0) return r;
  change_names(in, {{from, (flags & RENAME_EXCHANGE) != 0 ? target : none}, {to, source}});
  return 0;
}
int simulated_disk::link_at(int directory, const char *from, const char *to) {
  const std::lock_guard lock(mutex_);
  const std::size_t source = find(directory, from), in = open_inode(directory);
  if (source == none || in == none) return -ENOENT;
  if (find(directory, to) != none) return -EEXIST;
  if (const int r = may_change(); r != 0) return r;
  change_names(in, {{to, source}});
  return 0;
}
int simulated_disk::unlink_at(int directory, const char *name) {
  const std::lock_guard lock(mutex_);
  std::string last;
  const std::size_t in = parent(directory, name, last);
  if (find(directory, name) == none) return -ENOENT;
  if (const int r = may_change(); r != 0) return r;
  change_names(in, {{last, none}});
  return 0;
}
int simulated_disk::make_directory_at(int directory, const char *name, unsigned) {
  const std::lock_guard lock(mutex_);
  std::string last;
  const std::size_t in = parent(directory, name, last);
  if (in == none) return -ENOENT;
  if (find(directory, name) != none) return -EEXIST;
  if (const int r = may_change(); r != 0) return r;
  inodes_.push_back(new_directory());
  change_names(in, {{last, inodes_.size() - 1}});
  return 0;
}
int simulated_disk::remove_directory_at(int directory, const char *name) {
  {
    const std::lock_guard lock(mutex_);
    const std::size_t of = find(directory, name);
    if (of == none) return -ENOENT;
    if (!inodes_[of].names_now.empty()) return -ENOTEMPTY;
  }
  return unlink_at(directory, name);
}

int simulated_disk::names_in(int directory, std::vector<std::string> &to) {
  const std::lock_guard lock(mutex_);
  const std::size_t of = open_inode(directory);
  if (of == none) return -EBADF;
  for (const auto &entry : inodes_[of].names_now) to.push_back(entry.first);
  return 0;
}

}  // namespace stillmap::checkpoint
