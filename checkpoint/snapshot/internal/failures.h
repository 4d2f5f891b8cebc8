// A driver's failure as one of an image. Internal.
#pragma once

#include <string>

#include "stillmap/checkpoint/image/failure.h"

namespace stillmap::snapshot {

inline tl::unexpected<image::failure> pass_on(const error &why, std::string found = {}) {
  return tl::unexpected(image::failure{why, {}, image::part::file, 0, std::move(found), {}});
}

}  // namespace stillmap::snapshot
