// Whether memory is what an image says it was.
#pragma once

#include <functional>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/image/reader.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// Copies every page of `memory`, which was restored from `image` with these tags, from where it is
// now, and compares it with the image. `told`: bytes so far.
// Errors: exit_failed: where the first difference is; the driver's, the image's.
outcome<std::uint64_t> compare_with_image(const checkpoint::restored_memory &memory,
                                          const image::reader &image,
                                          const std::vector<std::string> &tags,
                                          const std::function<void(std::uint64_t)> &told);

}  // namespace stillmap::tool
