#include "stillmap/checkpoint/image/internal/children.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>

#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/read_superblock.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

constexpr std::size_t max_listed_children = 8;
// Of what this process has no right to read, and of links and sockets that lead to no file.
constexpr std::errc of_no_image[] = {
    std::errc::permission_denied, std::errc::operation_not_permitted,
    std::errc::too_many_symbolic_link_levels, std::errc::no_such_device_or_address};

tl::unexpected<error> in_use(const char *reason, const std::vector<std::string> &names) {
  std::string found;
  for (std::size_t i = 0; i < std::min(names.size(), max_listed_children); ++i) {
    found += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > max_listed_children) {
    found += " and " + std::to_string(names.size() - max_listed_children) + " more";
  }
  const error e = make_error(errc::busy, reason).value();
  return tl::unexpected(e.with({.found = std::move(found)}));
}

status check_none(const std::vector<std::string> &children) {
  if (children.empty()) return {};
  return in_use(
      "other images name it as their parent and could not be read any more; flatten them in their "
      "places (stillmap image flatten), or replace it by force",
      children);
}

result<folder_contents> list_folder_above(checkpoint::file_system &files, int directory) {
  const checkpoint::open_directory above{
      files, files.open_at(directory, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)};
  if (above.fd < 0) {
    return make_system_error(-above.fd, "cannot open the folder in which the set's folder is");
  }
  auto out = list_folder(above.fd, files);
  if (out) STILLMAP_RETURN_IF_ERROR(check_all_read(*out));
  return out;
}

}  // namespace

status check_all_read(const folder_contents &c) {
  for (const unreadable_name &u : c.unreadable) {
    const error &e = u.why;
    const bool is_none = e.is(errc::corrupt) || e.is(errc::not_supported) ||
                         std::any_of(std::begin(of_no_image), std::end(of_no_image),
                                     [&](std::errc code) { return e.code == code; });
    if (is_none) continue;
    return tl::unexpected(error{e.code, e.operation,
                                "a file in the folder, or in one beneath, cannot be read and may "
                                "build on what would go"}
                              .with({.found = u.name}));
  }
  return {};
}

status check_no_children(const checkpoint::target_name &target) {
  checkpoint::file_system &files = target.files();
  const auto replaced = read_superblock(files, target.directory(), target.name());
  if (!replaced) {
    const error &e = replaced.error();
    if (e.is(errc::corrupt) || e.is(errc::not_supported)) return {};
    return tl::unexpected(e);
  }
  if (const auto position = parse_name_in_set(target.name())) {
    const auto set = read_set(target.directory(), files);
    if (set && set->set == position->set) {
      return in_use("the image belongs to a set; replace the whole set", {set->set.text()});
    }
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto all, list_folder(target.directory(), files));
  STILLMAP_RETURN_IF_ERROR(check_all_read(all));
  std::vector<std::string> children;
  for (const folder_image &i : all.images) {
    if (i.name != target.name() && is_parent(*replaced, i.superblock)) children.push_back(i.name);
  }
  return check_none(children);
}

status check_no_children(checkpoint::file_system &files, int directory, const image_set &set) {
  STILLMAP_ASSIGN_OR_RETURN(const auto all, list_folder_above(files, directory));
  const auto is_member = [&](const image_id &image, const sha256 &root) {
    return std::any_of(set.images.begin(), set.images.end(),
                       [&](const set_member &m) { return m.image == image && m.root == root; });
  };
  std::vector<std::string> children;
  for (const folder_image &i : all.images) {
    const superblock &s = i.superblock;
    if (s.incremental() && is_member(s.parent, s.parent_root) && !is_member(s.image, s.root)) {
      children.push_back(i.name);
    }
  }
  return check_none(children);
}

result<std::vector<std::string>> parents_among(checkpoint::file_system &files, int directory,
                                               const std::vector<std::string> &names) {
  std::vector<std::string> parents;
  if (names.empty()) return parents;
  STILLMAP_ASSIGN_OR_RETURN(const auto all, list_folder_above(files, directory));
  for (const std::string &name : names) {
    const auto s = read_superblock(files, directory, name);
    if (s && std::any_of(all.images.begin(), all.images.end(),
                         [&](const folder_image &i) { return is_parent(*s, i.superblock); })) {
      parents.push_back(name);
    }
  }
  return parents;
}

}  // namespace stillmap::image
