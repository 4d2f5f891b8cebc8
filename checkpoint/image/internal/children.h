// Finds the images that would lose their parent if another image, or a set, were replaced. Internal.
// docs/snapshots.md#images-that-others-build-on
#pragma once

#include <string>
#include <vector>

#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/folder.h"

namespace stillmap::image {

// Whether all images are known. What is damaged, and what this process has no right to read, counts
// as no image; anything else that cannot be read may be one.
// Errors: those of reading it (detail().found: its name).
status check_all_read(const folder_contents &c);

// Whether the file of this name may be replaced: no image in its folder, or in a folder directly in
// that, names it as its parent, and no set names it as its image. What is no image can be no parent.
// Errors: busy (detail().found: their names); errors of system calls (the file, or one beside it, cannot
//         be read, or the folder cannot be listed, so that nobody knows).
status check_no_children(const checkpoint::target_name &target);

// The same of a set: of all its images, in the folder that its own folder (`directory`) is in.
status check_no_children(checkpoint::file_system &files, int directory, const image_set &set);

// The names of images in an open directory, by name, that images in the folder which contains it
// name as their parents. Errors: that folder cannot be listed.
result<std::vector<std::string>> parents_among(checkpoint::file_system &files, int directory,
                                               const std::vector<std::string> &names);

}  // namespace stillmap::image
