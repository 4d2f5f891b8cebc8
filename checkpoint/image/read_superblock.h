// Reads the first block of an image: its identity, its parent's, its size and time.
#pragma once

#include <string>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/superblock.h"

namespace stillmap::image {

// Checks this block, and that the file has the size that it says; the rest is not read. Needs no key.
// Errors: corrupt; not_supported (a newer version, unknown flags, not a regular file); errors of
//         system calls.
result<superblock> read_superblock(
    const std::string &path, checkpoint::file_system &files = checkpoint::file_system::system());
// The same of a name in an open directory.
result<superblock> read_superblock(checkpoint::file_system &files, int directory,
                                   const std::string &name);

}  // namespace stillmap::image
