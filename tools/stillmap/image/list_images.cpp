// stillmap image list: the images in a folder, and which builds on which.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "stillmap/checkpoint/image/folder.h"
#include "stillmap/checkpoint/image/read_superblock.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/image/image_commands.h"

namespace stillmap::tool {
namespace {

using image::folder_contents;
using image::folder_image;
using identity = std::pair<image::image_id, image::sha256>;

identity identity_of(const folder_image &i) {
  return {i.superblock.image, i.superblock.root};
}

// The identity of an image, or of each image of a set.
outcome<std::set<identity>> identities_at(const std::string &path) {
  std::set<identity> out;
  if (std::filesystem::is_directory(path)) {
    STILLMAP_ASSIGN_OR_RETURN(const auto set, about(image::read_set(path), path));
    for (const image::set_member &m : set.images) out.emplace(m.image, m.root);
    return out;
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto opened, about(image::read_superblock(path), path));
  out.emplace(opened.image, opened.root);
  return out;
}

// Leaves those that depend on one of `roots`, directly or not.
void keep_descendants(folder_contents &all, std::set<identity> roots) {
  const std::set<identity> first = roots;
  const auto found = [&](const folder_image &i) { return roots.contains(identity_of(i)); };
  for (std::size_t known = 0; known != roots.size();) {
    known = roots.size();
    for (const folder_image &i : all.images) {
      const image::superblock &s = i.superblock;
      if (s.incremental() && roots.contains({s.parent, s.parent_root}))
        roots.insert(identity_of(i));
    }
  }
  std::erase_if(all.images,
                [&](const folder_image &i) { return !found(i) || first.contains(identity_of(i)); });
}

// The name of the parent in the folder.
std::optional<std::string> parent_in(const std::vector<folder_image> &images,
                                     const folder_image &child) {
  for (const folder_image &i : images) {
    if (image::is_parent(i.superblock, child.superblock)) return i.name;
  }
  return std::nullopt;
}

void print_json(const std::string &folder, const folder_contents &shown,
                const std::vector<folder_image> &images) {
  json_writer json;
  json.begin_object().field("folder", folder).begin_array("images");
  for (const folder_image &i : shown.images) {
    const image::superblock &s = i.superblock;
    json.begin_object().field("name", i.name).field("image", s.image.text());
    json.field("file_bytes", s.file_bytes).field("contents_bytes", s.contents_bytes);
    json.field("time_ns", s.time).field("encrypted", s.encrypted()).field("link", i.is_link);
    json.field("parent", parent_in(images, i));
    s.incremental() ? json.field("parent_image", s.parent.text()) : json.nothing("parent_image");
    json.end();
  }
  json.end().begin_array("unreadable");
  for (const image::unreadable_name &u : shown.unreadable) {
    json.begin_object().field("name", u.name).field("error", u.why.message()).end();
  }
  fmt::print("{}", json.end().end().text());
}

void print_table(const folder_contents &shown, const std::vector<folder_image> &images) {
  std::size_t width = 4;
  for (const folder_image &i : shown.images) width = std::max(width, i.name.size());
  width = std::min<std::size_t>(width, 60);
  std::uint64_t bytes = 0;
  if (!shown.images.empty()) {
    fmt::print("{:<{}}  {:>10}  {:<23}  parent\n", "name", width, "size", "saved");
  }
  for (const folder_image &i : shown.images) {
    const image::superblock &s = i.superblock;
    if (!i.is_link) bytes += s.file_bytes;
    const auto parent = parent_in(images, i);
    fmt::print("{:<{}}  {:>10}  {:<23}  {}\n", printable(i.name), width,
               i.is_link ? "a link" : format_bytes(s.file_bytes), utc_text(s.time),
               parent            ? printable(*parent)
               : s.incremental() ? "not in this folder: " + s.parent.text()
                                 : "-");
  }
  for (const image::unreadable_name &u : shown.unreadable) {
    fmt::print("{}: {}\n", printable(u.name), printable(u.why.message()));
  }
  fmt::print("{}, {}\n", counted(shown.images.size(), "image"), format_bytes(bytes));
}

}  // namespace

outcome<exit_status> run_image_list(const image_list_options &o) {
  std::string folder = o.folder;
  if (folder.empty() && !o.children_of.empty()) {
    // Of a set: the folder that its own folder is in.
    const auto path = std::filesystem::absolute(o.children_of).lexically_normal();
    folder = (path.has_filename() ? path : path.parent_path()).parent_path().string();
  }
  if (folder.empty()) folder = ".";
  STILLMAP_ASSIGN_OR_RETURN(const auto all, about(image::list_folder(folder), folder));
  folder_contents shown = all;
  if (!o.children_of.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(auto roots, identities_at(o.children_of));
    keep_descendants(shown, std::move(roots));
  }
  o.json ? print_json(folder, shown, all.images) : print_table(shown, all.images);
  return exit_ok;
}

}  // namespace stillmap::tool
