#include "stillmap/checkpoint/base/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>

#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/operation.h"

namespace stillmap::checkpoint {
namespace {

constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr std::size_t random_letters = 6;

// Before the letters: no program of the user's makes such names.
constexpr std::string_view mark = ".stillmap-";

std::string prefix_of(const target_name &to) {
  return "." + to.name() + std::string(mark);
}

std::string any_name(const target_name &to) {
  std::string name = prefix_of(to);
  unsigned char random[random_letters] = {};
  // O_EXCL ensures uniqueness; too little randomness only costs another attempt.
  (void)!::getrandom(random, sizeof random, 0);
  for (const unsigned char r : random) name += letters[r % letters.size()];
  return name;
}

void remove_left_overs(const target_name &to) {
  std::vector<std::string> names;
  (void)to.files().names_in(to.directory(), names);
  for (const std::string &name : names) {
    if (target_of_temporary(name) == to.name()) remove_if_dead(to.files(), to.directory(), name);
  }
}

}  // namespace

std::string_view target_of_temporary(std::string_view name) {
  const std::size_t end = mark.size() + random_letters;
  if (name.size() < end + 2 || name.front() != '.') return {};
  const std::size_t at = name.size() - end;
  if (name.substr(at, mark.size()) != mark ||
      name.find_first_not_of(letters, at + mark.size()) != std::string_view::npos) {
    return {};
  }
  return name.substr(1, at - 1);
}

void remove_if_dead(file_system &files, int directory, const std::string &name) {
  const int fd =
      files.open_at(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
  if (fd < 0) return;
  struct stat st {};
  const bool dead = files.status(fd, &st) >= 0 && S_ISREG(st.st_mode) && files.lock(fd) >= 0 &&
                    files.leads_to(directory, name.c_str(), fd);
  if (dead) (void)files.unlink_at(directory, name.c_str());
  files.close(fd);
}

result<target_name> target_name::create(file_system &files, const std::string &path) {
  const operation_scope scope("target_name::create");
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.empty() || name == "." || name == "..") {
    return make_error(errc::invalid_argument, "the path names no file");
  }
  const int fd = files.open_at(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) return make_system_error(-fd, "cannot open the directory");
  return target_name(files, fd, std::move(name));
}

target_name::target_name(target_name &&o) noexcept
    : files_(o.files_), directory_(std::exchange(o.directory_, -1)), name_(std::move(o.name_)) {}

target_name::~target_name() {
  if (directory_ >= 0) files_->close(directory_);
}

result<atomic_file> atomic_file::create(const target_name &to, bool direct) {
  const operation_scope scope("atomic_file::create");
  file_system &files = to.files();
  remove_left_overs(to);
  // tmpfs accepts O_DIRECT but is slower with it.
  direct = direct && !files.is_in_memory(to.directory());
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string name = any_name(to);
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = direct ? files.open_at(to.directory(), name.c_str(), flags | O_DIRECT, 0600) : -EINVAL;
    const bool is_direct = fd >= 0;
    if (fd == -EINVAL) {
      // A file system that refuses O_DIRECT may have created the file nevertheless.
      if (direct) (void)files.unlink_at(to.directory(), name.c_str());
      fd = files.open_at(to.directory(), name.c_str(), flags, 0600);
    }
    if (fd == -EEXIST) continue;
    if (fd < 0) return make_system_error(-fd, "cannot create a temporary file in the directory");
    atomic_file t(to, std::move(name), block_file(files, fd, is_direct));
    const int locked = files.lock(fd);
    // Another writer took the file for an abandoned one before it was locked.
    if (locked == -EWOULDBLOCK ||
        (locked >= 0 && !files.leads_to(to.directory(), t.name_.c_str(), fd)))
      continue;
    if (locked < 0 && locked != -EOPNOTSUPP && locked != -ENOLCK && locked != -EINVAL) {
      return make_system_error(-locked, "cannot lock the file");
    }
    return t;
  }
  return make_system_error(EEXIST, "found no free name for a temporary file");
}

result<atomic_file> atomic_file::create_as(const target_name &to, std::string name) {
  const operation_scope scope("atomic_file::create_as");
  const int flags = O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
  const int fd = to.files().open_at(to.directory(), name.c_str(), flags, 0600);
  if (fd < 0) return make_system_error(-fd, "cannot create a temporary file");
  return atomic_file(to, std::move(name), block_file(to.files(), fd, false));
}

atomic_file::atomic_file(atomic_file &&o) noexcept
    : to_(o.to_),
      name_(std::move(o.name_)),
      file_(std::move(o.file_)),
      remove_(std::exchange(o.remove_, false)),
      process_(o.process_) {}

atomic_file::~atomic_file() {
  // While it is still locked: afterwards another writer may have removed and reused the name.
  if (remove_ && process_.is_current())
    (void)to_->files().unlink_at(to_->directory(), name_.c_str());
}

status atomic_file::publish(bool replace) {
  const operation_scope scope("atomic_file::publish");
  return replace ? exchange_names() : take_name();
}

status atomic_file::sync_directory() {
  if (const int r = to_->files().sync(to_->directory()); r < 0) {
    return make_system_error(-r, "cannot sync the directory");
  }
  return {};
}

status atomic_file::take_name() {
  file_system &files = to_->files();
  const char *const from = name_.c_str(), *const to = to_->name().c_str();
  int r = files.rename_at(to_->directory(), from, to, RENAME_NOREPLACE);
  if (r == -EINVAL || r == -ENOSYS) {
    // link() never replaces a file either; the temporary name is removed afterwards.
    r = files.link_at(to_->directory(), from, to);
    if (r >= 0) {
      if (const auto ok = sync_directory(); !ok) {
        (void)files.unlink_at(to_->directory(), to);
        return ok;
      }
      return {};  // the destructor removes the temporary name
    }
  }
  if (r == -EEXIST) return make_system_error(EEXIST, "a file of this name exists already");
  if (r < 0) return make_system_error(-r, "cannot rename the temporary file");
  remove_ = false;
  if (const auto ok = sync_directory(); !ok) {
    remove_ = files.rename_at(to_->directory(), to, from, RENAME_NOREPLACE) >= 0;
    if (!remove_) (void)files.unlink_at(to_->directory(), to);
    return ok;
  }
  return {};
}

status atomic_file::exchange_names() {
  file_system &files = to_->files();
  const char *const from = name_.c_str(), *const to = to_->name().c_str();
  struct stat st {};
  const int there = files.status_at(to_->directory(), to, &st);
  if (there == -ENOENT) return take_name();
  if (there < 0)
    return make_system_error(-there, "cannot read the status of the file to be replaced");
  if (!S_ISREG(st.st_mode)) {
    return make_system_error(EEXIST, "the file to be replaced is not a regular file");
  }
  int r = files.rename_at(to_->directory(), from, to, RENAME_EXCHANGE);
  if (r == -EINVAL || r == -ENOSYS) {
    // The file system cannot exchange names: the rename removes the old file.
    r = files.rename_at(to_->directory(), from, to, 0);
    if (r < 0) return make_system_error(-r, "cannot rename the temporary file");
    remove_ = false;
    return sync_directory();
  }
  if (r < 0) return make_system_error(-r, "cannot rename the temporary file");
  // The temporary name leads to the old file now. The destructor removes it, once the exchange is
  // durable.
  if (const auto ok = sync_directory(); !ok) {
    if (files.rename_at(to_->directory(), from, to, RENAME_EXCHANGE) < 0) remove_ = false;
    return ok;
  }
  return {};
}

}  // namespace stillmap::checkpoint
