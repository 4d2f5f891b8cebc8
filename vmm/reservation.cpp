#include "stillmap/vmm/reservation.h"

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {

result<reservation> reservation::create(const stillmap::device &d, std::size_t bytes,
                                        reservation_options options) {
  const operation_scope scope("reservation::create");
  const device_address wanted = options.hint;
  STILLMAP_ASSIGN_OR_RETURN(auto block, d.space().reserve(bytes, options.alignment, options.hint,
                                                          std::move(options.tag)));
  if (options.exact_address && block->range().begin != wanted) {
    return make_error(errc::busy, "the requested address is taken", wanted.value(),
                      block->range().begin.value(), error_unit::address);
  }
  return reservation(d, std::move(block));
}

}  // namespace stillmap
