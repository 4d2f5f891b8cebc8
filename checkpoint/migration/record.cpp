#include "stillmap/checkpoint/migration/record.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "stillmap/checkpoint/image/internal/image_error.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/vmm/internal/host_memory.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::migration {
namespace {

constexpr const char *record_op = "migration::record";
constexpr std::string_view first_line = "stillmap-migration 1";
constexpr std::size_t max_record_bytes = 4096;
constexpr std::array names{"owner", "running", "intent", "released", "refused"};

tl::unexpected<error> system_error(const char *reason, const std::string &path) {
  return make_system_error(errno, record_op, reason, path);
}

std::string record_path(const std::string &directory, const task_id &task) {
  return directory + '/' + task.text() + ".record";
}
std::string lock_path(const std::string &directory, const task_id &task) {
  return directory + '/' + task.text() + ".lock";
}

std::string seal_of(std::string_view text) {
  return image::sha256_of(std::as_bytes(std::span(text))).text();
}

// Fits on one line of the record.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, '?');
  return text.substr(0, 512);
}

// Writes and syncs.
status write_all(int fd, const std::string &text, const std::string &path) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_error("the record cannot be written", path);
    done += static_cast<std::size_t>(n);
  }
  if (::fsync(fd) != 0) return system_error("the record cannot be synced", path);
  return {};
}

result<std::optional<record>> read_record(const std::string &directory, const task_id &task) {
  const std::string name = record_path(directory, task);
  const owned_fd in(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (in.get() < 0) {
    if (errno == ENOENT) return std::optional<record>();
    return system_error("the record cannot be opened", name);
  }
  std::string text(max_record_bytes, '\0');
  const ssize_t n = ::read(in.get(), text.data(), text.size());
  if (n < 0) return system_error("the record cannot be read", name);
  text.resize(static_cast<std::size_t>(n));
  std::optional<record> r = parse_record(text);
  if (!r || r->task != task) {
    return image::in_file(make_error(errc::corrupt, record_op, "the record is damaged"), name);
  }
  return r;
}

bool is_locked(const std::string &directory, const task_id &task) {
  const std::string name = lock_path(directory, task);
  const owned_fd lock(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  return lock.get() >= 0 && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace

// Without streams: these turn a lack of memory into text that is cut off, or not read.
std::string to_text(const record &r) {
  std::string text(first_line);
  const auto field = [&](const char *name, const std::string &value) {
    text += '\n';
    text += name;
    text += ' ';
    text += value;
  };
  field("task", r.task.text());
  field("epoch", std::to_string(r.epoch));
  field("state", name_of(r.state));
  field("session", r.session.text());
  field("contents", r.contents.text());
  field("peer", one_line(r.peer));
  text += '\n';
  return text + "seal " + seal_of(text) + '\n';
}

std::optional<record> parse_record(const std::string &text) {
  const std::size_t seal = text.rfind("seal ");
  if (seal == std::string::npos) return std::nullopt;
  std::string_view left = std::string_view(text).substr(0, seal);
  if (text.substr(seal) != "seal " + seal_of(left) + '\n') return std::nullopt;
  // The next line, without its end; empty where there are no more.
  const auto line = [&left] {
    const std::string_view whole = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), whole.size() + 1));
    return whole;
  };
  const auto field = [&line](std::string_view name, std::string_view &into) {
    const std::string_view found = line();
    if (!found.starts_with(name) || found.size() == name.size() || found[name.size()] != ' ') {
      return false;
    }
    into = found.substr(name.size() + 1);
    return true;
  };
  record r;
  std::string_view task, epoch, state, session, contents, peer;
  if (line() != first_line || !field("task", task) || !image::parse(task, r.task) ||
      !field("epoch", epoch) || !field("state", state) || !field("session", session) ||
      !image::parse(session, r.session) || !field("contents", contents) ||
      !image::parse(contents, r.contents) || !field("peer", peer)) {
    return std::nullopt;
  }
  r.epoch = std::strtoull(std::string(epoch).c_str(), nullptr, 10);
  const auto name = std::find(names.begin(), names.end(), state);
  if (name == names.end()) return std::nullopt;
  r.state = static_cast<ownership>(name - names.begin());
  r.peer = peer;
  return r;
}

const char *name_of(ownership o) noexcept {
  return names[static_cast<std::size_t>(o)];
}

std::optional<task_id> parse_task_id(std::string_view text) {
  task_id out;
  return image::parse(text, out) ? std::optional(out) : std::nullopt;
}

result<record_file> record_file::open(const std::string &directory, const task_id &task) {
  return with_host_memory(record_op, [&]() -> result<record_file> {
    const std::string name = lock_path(directory, task);
    std::string kept = directory;
    owned_fd lock(::open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    if (lock.get() < 0) return system_error("the lock file cannot be opened", name);
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return system_error("the record cannot be locked", name);
      return image::in_file(make_error(errc::busy, record_op, "another process holds the record"),
                            name);
    }
    return record_file(std::move(kept), task, std::move(lock));
  });
}

result<std::optional<record>> record_file::read() const {
  return with_host_memory(
      record_op, [&]() -> result<std::optional<record>> { return read_record(directory_, task_); });
}

result<std::vector<record_info>> list_records(const std::string &directory) {
  return with_host_memory(record_op, [&]() -> result<std::vector<record_info>> {
    const std::unique_ptr<DIR, int (*)(DIR *)> in(::opendir(directory.c_str()), &::closedir);
    if (in == nullptr) return system_error("the directory of records cannot be opened", directory);
    std::vector<record_info> out;
    for (;;) {
      errno = 0;
      const dirent *const e = ::readdir(in.get());
      if (e == nullptr && errno != 0)
        return system_error("the directory of records cannot be read", directory);
      if (e == nullptr) break;
      const std::string_view name = e->d_name;
      if (!name.ends_with(".record")) continue;
      if (const auto task = parse_task_id(name.substr(0, name.size() - 7)))
        out.emplace_back().task = *task;
    }
    std::sort(out.begin(), out.end(),
              [](const record_info &a, const record_info &b) { return a.task < b.task; });
    for (record_info &r : out) {
      r.locked = is_locked(directory, r.task);
      auto read = read_record(directory, r.task);
      if (read) {
        r.value = std::move(*read);
      } else {
        r.failure = read.error();
      }
    }
    return out;
  });
}

status record_file::write(const record &r) {
  return with_host_memory(record_op, [&]() -> status {
    const std::string name = record_path(directory_, task_), fresh = name + ".new",
                      text = to_text(r);
    {
      const owned_fd out(::open(fresh.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
      if (out.get() < 0) return system_error("the record cannot be created", fresh);
      STILLMAP_RETURN_IF_ERROR(write_all(out.get(), text, fresh));
    }
    if (::rename(fresh.c_str(), name.c_str()) != 0) {
      return system_error("the record cannot be replaced", name);
    }
    const owned_fd at(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (at.get() < 0 || ::fsync(at.get()) != 0) {
      return system_error("the directory of records cannot be synced", directory_);
    }
    return {};
  });
}

}  // namespace stillmap::migration
