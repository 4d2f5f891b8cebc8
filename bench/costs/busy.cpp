#include "bench/costs/busy.h"

namespace stillmap::costs {

result<busy_kernel> busy_kernel::load(const machine &m) {
  auto loaded = bench::kernels::load(m.driver());
  if (!loaded) return failed(loaded);
  busy_kernel k(std::move(*loaded));
  if (auto mapped = make_piece(m, m.page())) {
    k.mapped_ = std::move(*mapped);
  } else {
    const auto plain = m.driver().allocate(m.page());
    if (!plain) return failed(plain);
    k.plain_ = plain_memory(m.driver(), *plain);
  }
  return k;
}

}  // namespace stillmap::costs
