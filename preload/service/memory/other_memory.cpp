// Memory that the driver serves, counted.
#include "preload/service/ipc/imported_blocks.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/memory/statistics.h"
#include "preload/service/serve.h"

namespace stillmap::preload {
namespace {

driver_code counted(driver_code result, passed why, word bytes) noexcept {
  if (result == code::success) note_passed(why, bytes);
  note_work();
  return result;
}

}  // namespace

driver_code serve(numbered<function::cuMemAllocManaged>, word at, word bytes,
                  number flags) noexcept {
  return counted(pass_on<function::cuMemAllocManaged>(at, bytes, flags), passed::managed, bytes);
}
driver_code serve(numbered<function::cuMemCreate>, word handle, word bytes, word properties,
                  word flags) noexcept {
  return counted(pass_on<function::cuMemCreate>(handle, bytes, properties, flags),
                 passed::own_mappings, bytes);
}
// What the allocator has mapped is to the program no memory of cuMemCreate, whose pages it could share.
driver_code serve(numbered<function::cuMemRetainAllocationHandle>, word handle, word at) noexcept {
  if (heaps::owner(at) != nullptr || imported_blocks::find(at)) return code::invalid_value;
  return pass_on<function::cuMemRetainAllocationHandle>(handle, at);
}
// The size of an array depends on its format and on the device: not counted.
driver_code serve(numbered<function::cuArrayCreate_v2>, word array, word descriptor) noexcept {
  return counted(pass_on<function::cuArrayCreate_v2>(array, descriptor), passed::arrays, 0);
}
driver_code serve(numbered<function::cuArray3DCreate_v2>, word array, word descriptor) noexcept {
  return counted(pass_on<function::cuArray3DCreate_v2>(array, descriptor), passed::arrays, 0);
}
driver_code serve(numbered<function::cuMipmappedArrayCreate>, word array, word descriptor,
                  number levels) noexcept {
  return counted(pass_on<function::cuMipmappedArrayCreate>(array, descriptor, levels),
                 passed::arrays, 0);
}

}  // namespace stillmap::preload
