// A library whose constructor calls the driver, while the loader holds its lock.
#include <cuda.h>

namespace {
[[gnu::constructor]] void begin() {
  cuCtxSynchronize();
}
}  // namespace
