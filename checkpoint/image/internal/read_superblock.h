// Reads the first block of an image by its name. Internal.
#pragma once

#include <string>

#include "stillmap/checkpoint/image/internal/file_calls.h"
#include "stillmap/checkpoint/image/superblock.h"

namespace stillmap::image {

// Checks what the block and the size of the file say; the rest is not read. Needs no key.
// Errors: those of image_file and decode_superblock; corrupt (the size differs).
result<superblock> read_superblock(file_calls &calls, int directory, const std::string &name);

}  // namespace stillmap::image
