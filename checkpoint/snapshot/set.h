// What tags of several devices hold at one moment, saved as a set of images, and brought back: on
// all of the devices, or on none. docs/design.md#snapshots
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

// One image of the set.
struct set_part {
  device on;
  std::vector<std::string> tags;
  std::optional<fence> idle;                 // as save_options::idle, of this device
  std::vector<image::manifest::note> notes;  // the application's own, to be found again
};

struct save_set_progress {
  std::uint32_t part = 0;  // whose image got on
  image::write_progress image;
};

struct save_set_options {
  // How each image is written. `replace` is of the set; `threads` are shared by all images (0: as
  // many as there are processors, at most 8 an image). Its own parent, place in a set and progress
  // are not used.
  image::write_options image;
  // Writes an incremental set: for each part its parent, as image::open_set() opened them.
  std::vector<image::reader> parents;
  // Called now and then by one thread at a time; false: give up. Must not throw.
  std::function<bool(const save_set_progress &)> on_progress;
};

struct written_set {
  image::image_id set;
  std::vector<image::written> images;  // by part
};

// Writes the memory of all parts into `folder`, which is made if need be. No part is read before
// all are idle; then the images are written at the same time.
// Requires: until it returns nobody changes the memory, its pages, or what is mapped.
// Ensures:  failure: no set, or the one that was there, and none of the new files; the memory is
//           untouched either way. Replacing: the old set, or the new one, never a mixture.
// Errors:   invalid_argument (no parts; a tag of a device in two of them; another number of parents
//           than of parts; replacing a set with an image that a parent needs), busy (another writer
//           of this folder), std::errc::file_exists, those of save(): the failure's file says of
//           which image; and of image::set_writer.
// Threads:  safe; one writer a folder.
// Cost:     as save(), for each part.
image::outcome<written_set> save_set(std::span<const set_part> parts, const std::string &folder,
                                     const save_set_options &how = {});

struct restored_set {
  image::image_id set;
  std::vector<restored> devices;  // by part
};

// Image i of the set on devices[i]. All images are opened and checked, and all addresses reserved,
// before any contents are read; all contents are there before anything is mapped.
// `how.tags`: where they are; a device that has none of them gets nothing. `how.threads` are shared
// by all, progress is of all together.
// Ensures: failure: nothing is reserved, mapped or created on any of them.
// Errors:  invalid_argument (another number of devices than the set has images; a tag that no image
//          has), and those of restore() and image::open_set: the failure's file says of which.
// Threads: safe. Cost: as restore(), for each.
image::outcome<restored_set> restore_set(std::span<const device> devices, const std::string &folder,
                                         const restore_options &how = {});
image::outcome<restored_set> restore_set(std::span<const device> devices,
                                         std::span<const image::reader> images,
                                         const restore_options &how = {});

}  // namespace stillmap::snapshot
