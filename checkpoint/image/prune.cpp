#include "stillmap/checkpoint/image/prune.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/internal/children.h"
#include "stillmap/checkpoint/image/internal/folder_lock.h"
#include "stillmap/checkpoint/image/read_superblock.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

constexpr int open_folder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

// What is kept or removed as a whole.
struct retained_unit {
  pruned_image what;
  bool is_set = false;
  bool removable = true;
  std::vector<const folder_image *> images;
};

// Whether an image of the one is the parent of an image of the other, or what a link leads to.
bool needs(const retained_unit &child, const retained_unit &parent) {
  for (const folder_image *c : child.images) {
    for (const folder_image *p : parent.images) {
      if (is_parent(p->superblock, c->superblock)) return true;
      if (c->is_link && c->superblock == p->superblock) return true;
    }
  }
  return false;
}

std::string folder_in(const std::string &name) {
  const std::size_t slash = name.find('/');
  return slash == std::string::npos ? "." : name.substr(0, slash);
}

std::vector<retained_unit> units_of(const folder_contents &all) {
  std::vector<retained_unit> units;
  std::map<std::string, std::size_t> set_units;  // by folder
  std::map<std::string, const image_set *> sets;
  for (const folder_set &s : all.sets) {
    sets[s.name] = &s.set;
    if (s.name == ".") continue;
    set_units[s.name] = units.size();
    units.push_back({{s.name}, true, true, {}});
  }
  for (const folder_image &i : all.images) {
    const std::string folder = folder_in(i.name);
    const auto set = sets.find(folder);
    const bool in_set = set != sets.end() && i.superblock.set == set->second->set;
    if (!in_set || folder == ".") {
      units.push_back({{i.name}, false, !in_set && folder == "." && !i.is_link, {}});
    }
    retained_unit &u = in_set && folder != "." ? units[set_units[folder]] : units.back();
    u.images.push_back(&i);
    u.what.time = std::max(u.what.time, i.superblock.time);
    u.what.file_bytes += i.superblock.file_bytes;
  }
  return units;
}

class folder_pruner {
 public:
  folder_pruner(checkpoint::file_system &files, int directory, const prune_options &options)
      : files_(files), directory_(directory), options_(options) {}

  result<pruned> run() {
    STILLMAP_ASSIGN_OR_RETURN(auto all, list_folder(directory_, files_));
    STILLMAP_RETURN_IF_ERROR(check_all_read(all));
    std::vector<retained_unit> units = units_of(all);
    // Newest first; those that are not removable before all others.
    std::sort(units.begin(), units.end(), [](const retained_unit &a, const retained_unit &b) {
      if (a.removable != b.removable) return b.removable;
      if (a.what.time != b.what.time) return a.what.time > b.what.time;
      return a.what.name < b.what.name;
    });
    const auto first = std::find_if(units.begin(), units.end(),
                                    [](const retained_unit &u) { return u.removable; });
    const auto newest = static_cast<std::size_t>(units.end() - first);
    std::vector<retained_unit> stay(
        units.begin(),
        first + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(newest, options_.keep)));
    std::vector<retained_unit> go(units.begin() + static_cast<std::ptrdiff_t>(stay.size()),
                                  units.end());
    pruned out;
    for (const retained_unit &u : stay) {
      if (u.removable) out.kept.push_back(u.what);
    }
    move_needed(go, stay, out);
    STILLMAP_RETURN_IF_ERROR(remove_all(std::move(go), out));
    out.unreadable = std::move(all.unreadable);
    return out;
  }

 private:
  // Moves what `stay` depends on, directly or not, from `go` to it.
  static void move_needed(std::vector<retained_unit> &go, std::vector<retained_unit> &stay,
                          pruned &out) {
    for (std::size_t i = 0; i < stay.size(); ++i) {
      for (auto u = go.begin(); u != go.end();) {
        if (!needs(stay[i], *u)) {
          ++u;
          continue;
        }
        out.needed.push_back(u->what);
        stay.push_back(std::move(*u));
        u = go.erase(u);
      }
    }
  }

  // Children first: a parent goes when nothing that is left needs it.
  status remove_all(std::vector<retained_unit> go, pruned &out) {
    while (!go.empty()) {
      const auto next = std::find_if(go.begin(), go.end(), [&](const retained_unit &u) {
        return std::none_of(go.begin(), go.end(), [&](const retained_unit &other) {
          return &other != &u && needs(other, u);
        });
      });
      if (next == go.end()) break;  // a circle, which no writer makes: it stays
      bool removed = true;
      if (!options_.dry_run) {
        STILLMAP_ASSIGN_OR_RETURN(removed, next->is_set ? remove_set(*next) : remove_image(*next));
      }
      if (removed) out.removed.push_back(next->what);
      go.erase(next);
    }
    return {};
  }

  status remove_name(int directory, const std::string &name) {
    const int r = files_.unlink_at(directory, name.c_str());
    return r >= 0 || r == -ENOENT ? status()
                                  : make_system_error(-r, "cannot remove the file", name);
  }

  // False: another image, or set, has taken the place of the one that was listed.
  result<bool> remove_image(const retained_unit &u) {
    const auto now = read_superblock(files_, directory_, u.what.name);
    if (now && now->image != u.images.front()->superblock.image) return false;
    STILLMAP_RETURN_IF_ERROR(remove_name(directory_, u.what.name));
    return true;
  }

  // The file `set` goes last, so that what an interruption leaves is found the next time.
  result<bool> remove_set(const retained_unit &u) {
    const checkpoint::open_directory in{
        files_, files_.open_at(directory_, u.what.name.c_str(), open_folder | O_NOFOLLOW, 0)};
    if (in.fd < 0) return make_system_error(-in.fd, "cannot open the folder", u.what.name);
    const result<bool> removed = remove_set_in(in.fd, u);
    if (removed && *removed) (void)files_.remove_directory_at(directory_, u.what.name.c_str());
    return removed;
  }
  result<bool> remove_set_in(int directory, const retained_unit &u) {
    STILLMAP_ASSIGN_OR_RETURN(
        const auto lock, checkpoint::in_file(folder_lock::take(files_, directory), u.what.name));
    const auto now = read_set(directory, files_);
    if (!u.images.empty() && now && now->set != u.images.front()->superblock.set) return false;
    for (const folder_image *i : u.images) {
      STILLMAP_RETURN_IF_ERROR(remove_name(directory, i->name.substr(u.what.name.size() + 1)));
    }
    STILLMAP_RETURN_IF_ERROR(remove_name(directory, "set"));
    return true;
  }

  checkpoint::file_system &files_;
  const int directory_;
  const prune_options &options_;
};

}  // namespace

result<pruned> prune_folder(const std::string &folder, const prune_options &options) {
  const operation_scope scope("image::prune_folder");
  if (options.keep == 0) return make_error(errc::invalid_argument, "no image would be kept", 0, 1);
  checkpoint::file_system &files = *options.files;
  const checkpoint::open_directory opened{files,
                                          files.open_at(AT_FDCWD, folder.c_str(), open_folder, 0)};
  if (opened.fd < 0) return make_system_error(-opened.fd, "cannot open the folder", folder);
  const auto prune = [&] { return folder_pruner(files, opened.fd, options).run(); };
  return checkpoint::in_file(with_host_memory(prune), folder);
}

}  // namespace stillmap::image
