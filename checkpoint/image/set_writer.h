// The folder of a set while it is written: made, kept to one writer, committed or left as it was.
// docs/image_format.md#writing-a-set
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::image {

struct set_options {
  bool replace = false;         // a set that is there already; else that is an error
  file_calls *calls = nullptr;  // for tests; the system's
};

// Threads: externally synchronised; the images may be written by any threads, and processes.
class set_writer {
 public:
  // Makes the folder where there is none, keeps other writers out, and removes what dead ones left
  // (images of no set under the names of some: nothing else in the folder is touched).
  // Errors: invalid_argument (no images, or more than most_images_in_set); busy (another writer);
  //         std::errc::file_exists (not replacing, and there is a set); corrupt, not_supported (the
  //         one there cannot be read, so that nobody knows what of it to remove); the system's.
  static outcome<set_writer> create(const std::string &folder, std::uint32_t images,
                                    const set_options &how = {});
  set_writer(set_writer &&o) noexcept;
  set_writer &operator=(set_writer &&) = delete;
  // Not committed: removes all images of this set, and the folder if this made it.
  ~set_writer();

  const image_id &set() const { return set_; }
  // What commit() will replace. Its images are removed then, so none of the new ones may need one
  // of them (needs()).
  const std::optional<image_set> &replaces() const { return old_; }

  // Where an image belongs, and what it says of itself.
  std::string path(std::uint32_t index) const;
  void place(std::uint32_t index, write_options &image) const;

  // The set is these images, by their place: all written, under their names.
  // Ensures: whenever the process or the machine stops, the folder is the old set, or the new one,
  //          whole. Failure: as before, as for an image.
  // Errors:  those of write_set.
  done commit(std::vector<set_member> images);

 private:
  set_writer(std::string folder, std::uint32_t images, const set_options &how);
  done open();
  done look();
  void remove_left_overs() const;
  void remove_images(const image_set &of) const;

  std::string folder_;
  std::uint32_t images_;
  bool replace_;
  file_calls *calls_;
  int directory_ = -1;
  bool made_folder_ = false, locked_ = false, keep_ = false;
  image_id set_;
  std::optional<image_set> old_;
};

}  // namespace stillmap::image
