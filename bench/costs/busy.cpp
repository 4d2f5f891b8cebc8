#include "bench/costs/busy.h"

#include "stillmap/vmm/internal/try.h"

namespace stillmap::costs {

result<busy_kernel> busy_kernel::load(const machine &m) {
  STILLMAP_ASSIGN_OR_RETURN(bench::kernels loaded, bench::kernels::load(m.driver()));
  busy_kernel k(std::move(loaded));
  if (auto mapped = make_piece(m, m.page())) {
    k.mapped_ = std::move(*mapped);
  } else {
    STILLMAP_ASSIGN_OR_RETURN(const device_address plain, m.driver().allocate(m.page()));
    k.plain_ = plain_memory(m.driver(), plain);
  }
  return k;
}

}  // namespace stillmap::costs
