#include "stillmap/checkpoint/migration/record.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <list>
#include <memory>

#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/migration/internal/record_lock.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::migration {
namespace {

constexpr std::string_view first_line = "stillmap-migration 2";
constexpr std::size_t max_record_bytes = 4096;
constexpr std::array names{"owner", "running", "intent", "released", "none"};
constexpr std::array transfer_names{"offered", "committed", "refused"};

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

tl::unexpected<error> about_record(const error &e, const std::string &path) {
  return checkpoint::in_file(tl::unexpected<error>(e), path);
}

// Empty: not written yet.
result<std::string> read_text(checkpoint::file_system &files, const std::string &name) {
  auto in = checkpoint::block_file::open_to_read(files, AT_FDCWD, name, false);
  if (!in) {
    if (in.error().code == std::errc::no_such_file_or_directory) return std::string();
    return about_record(in.error(), name);
  }
  const auto size = in->size();
  if (!size) return about_record(size.error(), name);
  std::string text(std::min<std::uint64_t>(*size, max_record_bytes), '\0');
  if (const status s = in->read(std::as_writable_bytes(std::span(text)), 0); !s) {
    return about_record(s.error(), name);
  }
  // An empty file is no record, and not the absence of one.
  if (text.empty()) text += '\0';
  return text;
}

result<std::optional<record>> parse_text(const std::string &text, const std::string &name,
                                         const task_id &task) {
  if (text.empty()) return std::optional<record>();
  std::optional<record> r = parse_record(text);
  if (!r || r->task != task) {
    return checkpoint::in_file(
        make_error(errc::corrupt,
                   "the record is damaged, or was written by another version of Stillmap"),
        name);
  }
  return r;
}

result<std::optional<record>> read_file(checkpoint::file_system &files,
                                        const std::string &directory, const task_id &task) {
  const std::string name = record_path(directory, task);
  STILLMAP_ASSIGN_OR_RETURN(const std::string text, read_text(files, name));
  return parse_text(text, name, task);
}

template <class Enum>
bool parse_name(std::string_view text, const auto &all, Enum &into) {
  const auto name = std::find(all.begin(), all.end(), text);
  if (name == all.end()) return false;
  into = static_cast<Enum>(name - all.begin());
  return true;
}

bool parse_epoch(std::string_view text, std::uint64_t &into) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), into);
  return failed == std::errc() && end == text.data() + text.size();
}

// "SESSION EPOCH STATE"
bool parse_transfer(std::string_view text, incoming_transfer &into) {
  const std::size_t first = text.find(' '), second = text.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  return parse_hex(text.substr(0, first), into.session) &&
         parse_epoch(text.substr(first + 1, second - first - 1), into.epoch) &&
         parse_name(text.substr(second + 1), transfer_names, into.state);
}

// "GROUP CERTIFICATE ADDRESS"
bool parse_reference(std::string_view text, group_reference &into) {
  const std::size_t first = text.find(' '), second = text.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  into.certificate = text.substr(first + 1, second - first - 1);
  into.address = text.substr(second + 1);
  return parse_hex(text.substr(0, first), into.id) && !into.id.is_zero();
}

// What keep_locked() keeps.
struct kept_record {
  record_file file;
  record truth;
};
struct kept_records {
  stillmap::mutex mutex;
  std::list<std::optional<kept_record>> all STILLMAP_GUARDED_BY(mutex);
};
kept_records &kept() {
  static undying<kept_records> records;
  return *records;
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
  field("certificate", one_line(r.certificate));
  if (!r.group.id.is_zero()) {
    field("group", r.group.id.text() + ' ' + one_line(r.group.certificate) + ' ' +
                       one_line(r.group.address));
  }
  for (const incoming_transfer &t : r.transfers) {
    field("transfer", t.session.text() + ' ' + std::to_string(t.epoch) + ' ' + name_of(t.state));
  }
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
  std::string_view task, epoch, state, session, contents, peer, certificate, transfer;
  if (line() != first_line || !field("task", task) || !parse_hex(task, r.task) ||
      !field("epoch", epoch) || !parse_epoch(epoch, r.epoch) || !field("state", state) ||
      !parse_name(state, names, r.state) || !field("session", session) ||
      !parse_hex(session, r.session) || !field("contents", contents) ||
      !parse_hex(contents, r.contents) || !field("peer", peer) ||
      !field("certificate", certificate)) {
    return std::nullopt;
  }
  r.peer = peer;
  r.certificate = certificate;
  std::string_view group;
  if (left.starts_with("group ") && (!field("group", group) || !parse_reference(group, r.group))) {
    return std::nullopt;
  }
  while (!left.empty()) {
    if (!field("transfer", transfer) || !parse_transfer(transfer, r.transfers.emplace_back())) {
      return std::nullopt;
    }
  }
  return r;
}

const char *name_of(ownership o) noexcept {
  return names[static_cast<std::size_t>(o)];
}

const char *name_of(transfer_state s) noexcept {
  return transfer_names[static_cast<std::size_t>(s)];
}

const incoming_transfer *record::find(const session_id &wanted) const {
  for (const incoming_transfer &t : transfers) {
    if (t.session == wanted) return &t;
  }
  return nullptr;
}

void record::set_transfer(const session_id &id, std::uint64_t its_epoch, transfer_state its_state) {
  std::erase_if(transfers, [&](const incoming_transfer &t) {
    return t.session == id || (t.state == transfer_state::offered && t.epoch == its_epoch);
  });
  if (transfers.size() >= max_transfers) {
    const auto failed = std::find_if(
        transfers.begin(), transfers.end(),
        [](const incoming_transfer &t) { return t.state != transfer_state::committed; });
    transfers.erase(failed == transfers.end() ? transfers.begin() : failed);
  }
  transfers.push_back({id, its_epoch, its_state});
}

void record::refuse(const session_id &id, std::uint64_t its_epoch) {
  const incoming_transfer *const t = find(id);
  if (t != nullptr && undelivered(*t)) state = ownership::none;
  set_transfer(id, its_epoch, transfer_state::refused);
}

std::optional<task_id> parse_task_id(std::string_view text) {
  task_id out;
  return parse_hex(text, out) ? std::optional(out) : std::nullopt;
}

record_file::record_file(std::string directory, const task_id &task, checkpoint::file_system &files,
                         std::unique_ptr<record_lock> lock) noexcept
    : directory_(std::move(directory)), task_(task), files_(&files), lock_(std::move(lock)) {}
record_file::record_file(record_file &&) noexcept = default;
record_file &record_file::operator=(record_file &&) noexcept = default;
record_file::~record_file() = default;

bool record_file::is_locked() const noexcept {
  return lock_ != nullptr && lock_->is_held();
}

result<record_file> record_file::open(const std::string &directory, const task_id &task,
                                      checkpoint::file_system &files) {
  return with_host_memory("record_file::open", [&]() -> result<record_file> {
    record truth;
    if (auto kept = take_kept(directory, task, truth)) {
      if (const status s = kept->write(truth); !s) {
        keep_locked(std::move(*kept), std::move(truth));
        return tl::unexpected(s.error());
      }
      return std::move(*kept);
    }
    std::string path = directory;
    STILLMAP_ASSIGN_OR_RETURN(record_lock taken, record_lock::take(lock_path(directory, task)));
    auto lock = std::make_unique<record_lock>(std::move(taken));
    return record_file(std::move(path), task, files, std::move(lock));
  });
}

std::optional<record_file> record_file::take_kept(const std::string &directory, const task_id &task,
                                                  record &truth) {
  const lock_guard lock(kept().mutex);
  for (auto k = kept().all.begin(); k != kept().all.end(); ++k) {
    kept_record &found = **k;
    if (found.file.task_ != task || found.file.directory_ != directory) continue;
    if (!found.file.is_locked()) continue;  // the parent's, where this is a forked child
    std::optional<record_file> out(std::move(found.file));
    truth = std::move(found.truth);
    kept().all.erase(k);
    return out;
  }
  return std::nullopt;
}

void record_file::keep_locked(record_file file, record truth) noexcept {
  std::list<std::optional<kept_record>> one;
  try {
    one.emplace_back();
  } catch (const std::bad_alloc &) {
    (void)file.lock_.release();  // stays open, so stays locked until this process ends
    return;
  }
  one.front().emplace(kept_record{std::move(file), std::move(truth)});
  const lock_guard lock(kept().mutex);
  kept().all.splice(kept().all.end(), one);
}

result<std::optional<record>> record_file::read() const {
  return with_host_memory("record_file::read", [&]() -> result<std::optional<record>> {
    const std::string name = record_path(directory_, task_);
    STILLMAP_ASSIGN_OR_RETURN(std::string text, read_text(*files_, name));
    STILLMAP_ASSIGN_OR_RETURN(auto r, parse_text(text, name, task_));
    last_ = std::move(text);
    return r;
  });
}

result<std::optional<record>> read_record(const std::string &directory, const task_id &task,
                                          checkpoint::file_system &files) {
  return with_host_memory("migration::read_record", [&]() -> result<std::optional<record>> {
    return read_file(files, directory, task);
  });
}

result<std::vector<record_info>> list_records(const std::string &directory,
                                              checkpoint::file_system &files) {
  return with_host_memory("migration::list_records", [&]() -> result<std::vector<record_info>> {
    const checkpoint::open_directory in{
        files, files.open_at(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)};
    if (in.fd < 0) {
      return make_system_error(-in.fd, "the directory of records cannot be opened", directory);
    }
    std::vector<std::string> found;
    if (const int r = files.names_in(in.fd, found); r < 0) {
      return make_system_error(-r, "the directory of records cannot be read", directory);
    }
    std::vector<record_info> out;
    for (const std::string_view name : found) {
      if (!name.ends_with(".record")) continue;
      if (const auto task = parse_task_id(name.substr(0, name.size() - 7)))
        out.emplace_back().task = *task;
    }
    std::sort(out.begin(), out.end(),
              [](const record_info &a, const record_info &b) { return a.task < b.task; });
    for (record_info &r : out) {
      r.locked = record_lock::is_taken(lock_path(directory, r.task));
      auto read = read_file(files, directory, r.task);
      if (read) {
        r.value = std::move(*read);
      } else {
        r.failure = read.error();
      }
    }
    return out;
  });
}

status record_file::confirm() {
  return with_host_memory("record_file::confirm", [&]() -> status {
    const std::string name = record_path(directory_, task_);
    if (!is_locked()) {
      return checkpoint::in_file(
          make_error(errc::not_supported,
                     "the process is a forked child of the one that holds the record"),
          name);
    }
    if (lock_->is_at_path()) return {};
    // Another process can hold the record, and if it has acted on it, this one must not.
    STILLMAP_ASSIGN_OR_RETURN(record_lock again, record_lock::take(lock_->path()));
    STILLMAP_ASSIGN_OR_RETURN(const std::string text, read_text(*files_, name));
    if (last_ != text) return lost();
    *lock_ = std::move(again);
    return {};
  });
}

tl::unexpected<error> record_file::lost() const {
  return checkpoint::in_file(
      make_error(errc::busy,
                 "the lock file was deleted while this process held the record, and another "
                 "process has changed the record since, or may have"),
      lock_->path());
}

status record_file::write(const record &r) {
  return with_host_memory("record_file::write", [&]() -> status {
    const std::string name = record_path(directory_, task_);
    std::string text = to_text(r);
    STILLMAP_RETURN_IF_ERROR(confirm());
    const auto write_new = [&]() -> status {
      STILLMAP_ASSIGN_OR_RETURN(const auto at, checkpoint::target_name::create(*files_, name));
      STILLMAP_ASSIGN_OR_RETURN(auto fresh,
                                checkpoint::atomic_file::create_as(at, at.name() + ".new"));
      STILLMAP_RETURN_IF_ERROR(fresh.file().write(std::as_bytes(std::span(text)), 0));
      STILLMAP_RETURN_IF_ERROR(fresh.file().sync_data());
      return fresh.publish(true);
    };
    last_.reset();
    if (const status s = write_new(); !s) return about_record(s.error(), name);
    // Deleted meanwhile: what another process has written may be replaced now.
    if (!lock_->is_at_path()) return lost();
    last_ = std::move(text);
    return {};
  });
}

}  // namespace stillmap::migration
