// Saves the memory of several devices at one moment as a set of images, and restores it on all of
// the devices or on none. docs/snapshots.md
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

// The memory of one image of the set.
struct set_part {
  stillmap::device device;
  std::vector<std::string> tags;
  std::optional<fence> idle;                 // as save_options::idle, of this device
  std::vector<image::manifest::note> notes;  // data of the application, returned by restore_set()
  // As save_options::published.
  checkpoint::published_memory_is published = checkpoint::published_memory_is::referred_to;
};

struct save_set_progress {
  std::uint32_t part = 0;  // the part whose image progressed
  image::write_progress image;
};

struct save_set_options {
  // How each image is written. `replace` and `force` apply to the set; `threads` are shared by all images (0:
  // the number of processors, at most 8 an image). Its parent, set, progress and cancel fields are
  // ignored.
  image::write_options image;
  // Writes an incremental set: the parent of each part, as image::open_set() opened them.
  std::vector<image::reader> parents;
  // Called from time to time by one thread at a time. Must not throw.
  std::function<void(const save_set_progress &)> on_progress;
  std::stop_token cancel;
};

struct written_set {
  image::image_id set;
  std::vector<image::written> images;  // by part
};

// Writes the memory of all parts into `folder`, which is created if necessary. Waits until all
// parts are idle before reading the first; then writes all images concurrently.
// Requires: until it returns, nothing changes the memory, its pages or its mappings.
// Ensures:  the memory is unchanged. Failure: no set, or the old one, and none of the new files.
//           Replacing: the old set or the new one, never a mixture.
// Errors:   invalid_argument (no parts; a tag of a device in two parts; another number of parents
//           than of parts; replacing a set that a parent depends on), busy (another writer of this
//           folder; replacing, without `force`, a set that others build on), std::errc::file_exists, operation_canceled; those of save() and
//           image::set_writer. detail().subject is the path of the image that failed.
// Threads:  safe; one writer a folder.
// Cost:     as save(), for each part.
result<written_set> save_set(std::span<const set_part> parts, const std::string &folder,
                             const save_set_options &options = {});

struct restored_set {
  image::image_id set;
  std::vector<restored> devices;  // by part
};

// Restores image i of the set on devices[i]. Opens and checks all images and reserves all addresses
// before reading any contents, and reads all contents before mapping anything.
// `options.tags` applies to the images that have them; a device without any of them gets nothing.
// `options.threads` are shared by all images; progress counts all images together.
// Ensures: failure: nothing is reserved, mapped or created on any device.
// Errors:  invalid_argument (another number of devices than of images; a tag that no image has),
//          and those of restore() and image::open_set; detail().subject is the path of the image.
// Threads: safe.
// Cost:    as restore(), for each image.
result<restored_set> restore_set(std::span<const device> devices, const std::string &folder,
                                 const restore_options &options = {});
result<restored_set> restore_set(std::span<const device> devices,
                                 std::span<const image::reader> images,
                                 const restore_options &options = {});

}  // namespace stillmap::snapshot
