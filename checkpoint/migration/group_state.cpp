#include "stillmap/checkpoint/migration/group_state.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/migration/internal/record_lock.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

constexpr std::string_view group_first_line = "stillmap-group 1";
constexpr std::size_t max_group_bytes = 512;
constexpr std::array group_state_names{"open", "stopping", "committed", "aborted"};

bool is_final(group_state s) {
  return s == group_state::committed || s == group_state::aborted;
}

// Whether the state `to` can follow.
bool may_follow(group_state now, group_state to) {
  if (is_final(now)) return false;
  // A commit follows stopping only: before, no task has its intent on record.
  return to == group_state::committed ? now == group_state::stopping : to > now;
}

std::string text_of(const group_id &group, group_state s) {
  std::string text(group_first_line);
  text += "\ngroup " + group.text() + "\nstate " + name_of(s) + '\n';
  return text + "seal " + image::sha256_of(std::as_bytes(std::span(text))).text() + '\n';
}

// Nullopt: damaged.
std::optional<group_state> parse_group(const group_id &group, const std::string &text) {
  for (std::size_t i = 0; i < group_state_names.size(); ++i) {
    const auto s = static_cast<group_state>(i);
    if (text == text_of(group, s)) return s;
  }
  return std::nullopt;
}

// Nullopt: there is none. Before a final state is told, the file's name is durable: the process that wrote it may have
// died before it could sync the directory.
result<std::optional<group_state>> read_group(checkpoint::file_system &files,
                                              const std::string &directory, const group_id &group,
                                              const std::string &path) {
  auto in = checkpoint::block_file::open_to_read(files, AT_FDCWD, path, false);
  if (!in) {
    if (in.error().code == std::errc::no_such_file_or_directory)
      return std::optional<group_state>();
    return tl::unexpected(in.error());
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto size, in->size());
  std::string text(std::min<std::uint64_t>(size, max_group_bytes), '\0');
  STILLMAP_RETURN_IF_ERROR(in->read(std::as_writable_bytes(std::span(text)), 0));
  const auto state = parse_group(group, text);
  if (!state) {
    return make_error(errc::corrupt,
                      "the state of the group is damaged, or was written by another version of "
                      "Stillmap");
  }
  if (!is_final(*state)) return state;
  const checkpoint::open_directory of{
      files, files.open_at(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)};
  const int synced = of.fd < 0 ? of.fd : files.sync(of.fd);
  if (synced < 0) return make_system_error(-synced, "cannot sync the directory");
  return state;
}

status write_group(checkpoint::file_system &files, const group_id &group, const std::string &path,
                   group_state s) {
  const std::string text = text_of(group, s);
  STILLMAP_ASSIGN_OR_RETURN(const auto at, checkpoint::target_name::create(files, path));
  STILLMAP_ASSIGN_OR_RETURN(auto fresh, checkpoint::atomic_file::create_as(at, at.name() + ".new"));
  STILLMAP_RETURN_IF_ERROR(fresh.file().write(std::as_bytes(std::span(text)), 0));
  STILLMAP_RETURN_IF_ERROR(fresh.file().sync_data());
  return fresh.publish(true);
}

}  // namespace

const char *name_of(group_state s) noexcept {
  return group_state_names[static_cast<std::size_t>(s)];
}

result<group_state> advance_group(const std::string &records, const group_id &group,
                                  std::optional<group_state> to, checkpoint::file_system &files) {
  return with_host_memory("migration::advance_group", [&]() -> result<group_state> {
    const std::string path = records + '/' + group.text() + ".group";
    STILLMAP_ASSIGN_OR_RETURN(const record_lock lock, record_lock::take(path + ".lock"));
    const auto done = [&]() -> result<group_state> {
      STILLMAP_ASSIGN_OR_RETURN(const auto now, read_group(files, records, group, path));
      if (!now && to != group_state::open) {
        return make_error(errc::busy,
                          "this machine's records do not list the group, so its state is unknown "
                          "here: start the receiver that keeps it, with the same directory of "
                          "records");
      }
      if (now && (!to || !may_follow(*now, *to))) return *now;
      STILLMAP_RETURN_IF_ERROR(write_group(files, group, path, *to));
      if (lock.is_at_path()) return *to;
      return make_error(errc::busy, "the lock file was deleted while the group's state changed");
    }();
    if (!done) return checkpoint::in_file(tl::unexpected(done.error()), path);
    return done;
  });
}

}  // namespace stillmap::migration
