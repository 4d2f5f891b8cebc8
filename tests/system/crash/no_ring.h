// System calls of image files without io_uring.
#pragma once

#include "stillmap/checkpoint/base/file_system.h"

namespace stillmap::image {

class no_ring final : public checkpoint::file_system {
  bool may_use_ring() override { return false; }
};

}  // namespace stillmap::image
