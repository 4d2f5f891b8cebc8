#include "stillmap/checkpoint/image/folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/read_superblock.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

constexpr int folder_flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

class folder_lister {
 public:
  explicit folder_lister(checkpoint::file_system &files) : files_(files) {}

  result<folder_contents> run(int directory) {
    STILLMAP_RETURN_IF_ERROR(add(directory, ""));
    for (const std::string &name : folders_) {
      const checkpoint::open_directory in{
          files_, files_.open_at(directory, name.c_str(), folder_flags | O_NOFOLLOW, 0)};
      const status listed =
          in.fd < 0 ? make_system_error(-in.fd, "cannot open the folder") : add(in.fd, name + "/");
      if (listed || listed.error().code == std::errc::no_such_file_or_directory)
        continue;  // or gone
      out_.unreadable.push_back({name, listed.error()});
    }
    const auto by_name = [](const auto &a, const auto &b) { return a.name < b.name; };
    std::sort(out_.images.begin(), out_.images.end(), by_name);
    std::sort(out_.sets.begin(), out_.sets.end(), by_name);
    return std::move(out_);
  }

 private:
  // What is in an open directory whose names get this prefix.
  status add(int directory, const std::string &prefix) {
    std::vector<std::string> names;
    if (const int r = files_.names_in(directory, names); r < 0)
      return make_system_error(-r, "cannot list the folder");
    for (const std::string &name : names) {
      if (name.starts_with('.')) continue;
      struct stat st {};
      if (const int r = files_.status_at(directory, name.c_str(), &st); r < 0) {
        if (r == -ENOENT) continue;  // it has gone
        const auto why = make_system_error(-r, "cannot read the status of the file");
        out_.unreadable.push_back({prefix + name, why.value()});
        continue;
      }
      if (name.ends_with(".smi")) {
        add_image(directory, name, prefix, S_ISLNK(st.st_mode));
      } else if (name == "set" && !S_ISDIR(st.st_mode)) {
        add_set(directory, prefix);
      } else if (S_ISDIR(st.st_mode) && prefix.empty()) {
        folders_.push_back(name);
      }
    }
    return {};
  }
  void add_image(int directory, const std::string &name, const std::string &prefix, bool is_link) {
    auto s = read_superblock(files_, directory, name);
    if (s) {
      out_.images.push_back({prefix + name, *s, is_link});
    } else if (s.error().code != std::errc::no_such_file_or_directory) {
      out_.unreadable.push_back({prefix + name, s.error()});
    }
  }
  void add_set(int directory, const std::string &prefix) {
    auto s = read_set(directory, files_);
    if (s) {
      out_.sets.push_back(
          {prefix.empty() ? "." : prefix.substr(0, prefix.size() - 1), std::move(*s)});
    } else if (s.error().code != std::errc::no_such_file_or_directory) {
      out_.unreadable.push_back({prefix + "set", s.error()});
    }
  }

  checkpoint::file_system &files_;
  folder_contents out_;
  std::vector<std::string> folders_;
};

}  // namespace

result<folder_contents> list_folder(int directory, checkpoint::file_system &files) {
  return with_host_memory("image::list_folder",
                          [&] { return folder_lister(files).run(directory); });
}

result<folder_contents> list_folder(const std::string &folder, checkpoint::file_system &files) {
  const operation_scope scope("image::list_folder");
  const checkpoint::open_directory opened{files,
                                          files.open_at(AT_FDCWD, folder.c_str(), folder_flags, 0)};
  if (opened.fd < 0) return make_system_error(-opened.fd, "cannot open the folder", folder);
  return checkpoint::in_file(list_folder(opened.fd, files), folder);
}

bool is_parent(const superblock &parent, const superblock &child) {
  return child.incremental() && child.parent == parent.image && child.parent_root == parent.root;
}

}  // namespace stillmap::image
