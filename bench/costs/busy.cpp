#include "bench/costs/busy.h"

namespace stillmap::costs {

result<busy_kernel> busy_kernel::load(const machine &m) {
  auto loaded = bench::kernels::load(m.drv());
  if (!loaded) return failed(loaded);
  busy_kernel k(std::move(*loaded));
  if (auto mapped = make_piece(m, m.page())) {
    k.mapped_ = std::move(*mapped);
  } else {
    const auto plain = m.drv().allocate(m.page());
    if (!plain) return failed(plain);
    k.plain_ = plain_memory(m.drv(), *plain);
  }
  return k;
}

}  // namespace stillmap::costs
