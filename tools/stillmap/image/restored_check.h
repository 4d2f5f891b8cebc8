// Compares restored memory with its image.
#pragma once

#include <functional>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/image/reader.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// Reads back every page of `memory`, which was restored from `image` with these tags, at every address
// it is mapped at. `on_progress` gets the bytes compared so far.
// Errors: exit_differs, with the address of the first difference; the driver's, the reader's.
outcome<std::uint64_t> compare_with_image(const checkpoint::restored_memory &memory,
                                          const image::reader &image,
                                          const std::vector<std::string> &tags,
                                          const std::function<void(std::uint64_t)> &on_progress);

}  // namespace stillmap::tool
