#include "stillmap/checkpoint/image/set_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/internal/children.h"
#include "stillmap/checkpoint/image/internal/folder_lock.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

std::string without_end(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

std::vector<std::string> names_of(const image_id &set, std::size_t images) {
  std::vector<std::string> names;
  names.reserve(images);
  for (std::uint32_t i = 0; i < images; ++i) names.push_back(name_in_set(i, set));
  return names;
}

}  // namespace

set_writer::set_writer(std::string folder, std::uint32_t images, const set_options &options)
    : folder_(std::move(folder)),
      images_(images),
      replace_(options.replace),
      force_(options.force),
      files_(options.files),
      process_(::getpid()) {}

set_writer::set_writer(set_writer &&o) noexcept
    : folder_(std::move(o.folder_)),
      images_(o.images_),
      replace_(o.replace_),
      force_(o.force_),
      files_(o.files_),
      process_(o.process_),
      directory_(std::exchange(o.directory_, -1)),
      made_folder_(std::exchange(o.made_folder_, false)),
      keep_(o.keep_),
      lock_(std::move(o.lock_)),
      set_(o.set_),
      old_(std::move(o.old_)),
      names_(std::move(o.names_)),
      old_names_(std::move(o.old_names_)) {}

set_writer::~set_writer() {
  const bool remove = !keep_ && process_ == ::getpid();
  if (directory_ >= 0 && remove) remove_images(names_);
  lock_.reset();  // whoever has taken it since has a file in the folder, which then stays
  if (made_folder_ && remove) (void)files_->remove_directory_at(AT_FDCWD, folder_.c_str());
  if (directory_ >= 0) files_->close(directory_);
}

result<set_writer> set_writer::create(const std::string &folder, std::uint32_t images,
                                      const set_options &options) {
  return with_host_memory("set_writer::create", [&]() -> result<set_writer> {
    set_writer w(without_end(folder), images, options);
    if (images == 0 || images > max_images_in_set) {
      return checkpoint::in_file(
          checkpoint::file_error(
              errc::invalid_argument, "a set needs at least one image, and not too many", part::set,
              12, std::to_string(images), "1 to " + std::to_string(max_images_in_set)),
          folder);
    }
    STILLMAP_RETURN_IF_ERROR(checkpoint::in_file(w.open(), folder));
    STILLMAP_RETURN_IF_ERROR(checkpoint::in_file(w.check_current_set(), folder));
    STILLMAP_ASSIGN_OR_RETURN(w.set_, checkpoint::in_file(make_id(), folder));
    w.names_ = names_of(w.set_, images);
    return w;
  });
}

status set_writer::open() {
  constexpr int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  directory_ = files_->open_at(AT_FDCWD, folder_.c_str(), flags, 0);
  if (directory_ == -ENOENT) {
    STILLMAP_ASSIGN_OR_RETURN(const auto at, checkpoint::target_name::create(*files_, folder_));
    const int made = files_->make_directory_at(at.directory(), at.name().c_str(), 0700);
    if (made < 0 && made != -EEXIST) return make_system_error(-made, "cannot create the directory");
    made_folder_ = made >= 0;
    if (const int r = files_->sync(at.directory()); made_folder_ && r < 0) {
      return make_system_error(-r, "cannot sync the parent directory");
    }
    directory_ = files_->open_at(at.directory(), at.name().c_str(), flags, 0);
  }
  if (directory_ < 0) return make_system_error(-directory_, "cannot open the directory");
  auto lock = folder_lock::take(*files_, directory_);
  if (!lock) {
    if (lock.error().is(errc::busy)) made_folder_ = false;  // the other writer uses it
    return tl::unexpected(lock.error());
  }
  lock_ = std::move(*lock);
  return {};
}

status set_writer::check_current_set() {
  auto there = read_set(folder_, *files_);
  if (!there && there.error().code != std::errc::no_such_file_or_directory) {
    return tl::unexpected(there.error());
  }
  if (there && !replace_)
    return make_system_error(EEXIST, "a set exists already in this directory");
  if (there) {
    old_ = std::move(*there);
    old_names_ = names_of(old_->set, old_->images.size());
    STILLMAP_RETURN_IF_ERROR(check_children());
  }
  if (lock_->excludes_others()) remove_left_overs();
  return {};
}

status set_writer::check_children() const {
  return old_ && !force_ ? check_no_children(*files_, directory_, *old_) : status();
}

void set_writer::remove_left_overs() const {
  std::vector<std::string> names, images;
  if (files_->names_in(directory_, names) < 0) return;
  for (const std::string &name : names) {
    const std::string_view target = checkpoint::target_of_temporary(name);
    if (target == "set" || parse_name_in_set(target)) {
      checkpoint::remove_if_dead(*files_, directory_, name);
      continue;
    }
    const auto place = parse_name_in_set(name);
    if (place && !(old_ && old_->set == place->set)) images.push_back(name);
  }
  // Parents that somebody has copied here have such names too.
  const auto parents = parents_among(*files_, directory_, images);
  if (!parents) return;
  std::erase_if(images, [&](const std::string &name) {
    return std::find(parents->begin(), parents->end(), name) != parents->end();
  });
  remove_images(images);
}

void set_writer::remove_images(const std::vector<std::string> &names) const {
  for (const std::string &name : names) (void)files_->unlink_at(directory_, name.c_str());
}

std::string set_writer::path(std::uint32_t index) const {
  return folder_ + "/" + name_in_set(index, set_);
}

void set_writer::set_membership(std::uint32_t index, write_options &options) const {
  options.set = set_;
  options.set_images = images_;
  options.set_index = index;
  options.replace = false;
}

status set_writer::commit(std::vector<set_member> images) {
  return with_host_memory("set_writer::commit", [&]() -> status {
    if (images.size() != images_) {
      return checkpoint::in_file(
          checkpoint::file_error(errc::invalid_argument,
                                 "not the number of images given to create()", part::set, 12,
                                 std::to_string(images.size()), std::to_string(images_)),
          folder_);
    }
    STILLMAP_RETURN_IF_ERROR(checkpoint::in_file(check_children(), folder_));
    struct stat before {
    }, after{};
    const int had = files_->status_at(directory_, "set", &before);
    auto ok = write_set(folder_, {set_, std::move(images)}, {replace_, force_, files_});
    if (!ok) {
      // The name leads to the same file as before, or to none: the commit took no effect.
      const int has = files_->status_at(directory_, "set", &after);
      if (has == -ENOENT || (had >= 0 && has >= 0 && before.st_ino == after.st_ino &&
                             before.st_dev == after.st_dev)) {
        // Unless that is durable, a crash may bring the new set back: its images must be there then.
        keep_ = files_->sync(directory_) < 0;
        return ok;
      }
      // Keep the images if the commit took effect nevertheless, or if that is unknown.
      const auto there = read_set(folder_, *files_);
      keep_ =
          there ? there->set == set_ : there.error().code != std::errc::no_such_file_or_directory;
      return ok;
    }
    keep_ = true;
    remove_images(old_names_);
    return {};
  });
}

}  // namespace stillmap::image
