// System calls of image files without io_uring.
#pragma once

#include "stillmap/checkpoint/image/internal/file_calls.h"

namespace stillmap::image {

class no_ring final : public file_calls {
  bool may_use_ring() override { return false; }
};

}  // namespace stillmap::image
