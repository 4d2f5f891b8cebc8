// Writes a set into a directory: locks it, then commits the whole set or leaves the old one.
// docs/image_format.md#writing-a-set
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::image {

class folder_lock;

// Threads: externally synchronised; any threads and processes may write the images.
// Fork:    the child's copy can be destroyed, which removes nothing.
class set_writer {
 public:
  // Creates the directory if necessary, locks it against other writers, and removes the files that
  // dead writers left: those with names of images that are not of the current set, unless they are
  // the parent of an image in the directory or in those beside it.
  // Errors: invalid_argument (no images, or more than max_images_in_set); busy (another writer; or,
  //         replacing without `force`, images in the directory that this one is in, or in those
  //         directly in it, name an image of the set there as their parent: detail().found);
  //         std::errc::file_exists (not replacing, and there is a set); corrupt, not_supported (the
  //         set there cannot be read, so its images are unknown); errors of system calls.
  static result<set_writer> create(const std::string &folder, std::uint32_t images,
                                   const set_options &options = {});
  set_writer(set_writer &&o) noexcept;
  set_writer &operator=(set_writer &&) = delete;
  // Unless committed: removes all images of this set, and the directory if create() made it.
  ~set_writer();

  const image_id &set() const { return set_; }
  // The set that commit() will replace. Its images are removed then, so no new image may depend on
  // one of them (depends_on()).
  const std::optional<image_set> &replaced_set() const { return old_; }

  // The path of an image, and the options that make it a member of this set.
  std::string path(std::uint32_t index) const;
  void set_membership(std::uint32_t index, write_options &options) const;

  // Commits the set. `images` are in the order of their indices.
  // Requires: all are written under their names.
  // Ensures:  whenever the process or the machine stops, the directory holds the whole old set or
  //           the whole new one. Failure: the old one, with the exception that write() names.
  // Errors:   those of write_set; busy as in create().
  status commit(std::vector<set_member> images);

 private:
  set_writer(std::string folder, std::uint32_t images, const set_options &options);
  status open();
  status check_current_set();
  status check_children() const;
  void remove_left_overs() const;
  void remove_images(const std::vector<std::string> &names) const;

  std::string folder_;
  std::uint32_t images_;
  bool replace_, force_;
  checkpoint::file_system *files_;
  int process_;  // that removes the images
  int directory_ = -1;
  bool made_folder_ = false, keep_ = false;
  std::unique_ptr<folder_lock> lock_;
  image_id set_;
  std::optional<image_set> old_;
  // Of the images of this set and of the old one, so that removing them needs no memory.
  std::vector<std::string> names_, old_names_;
};

}  // namespace stillmap::image
