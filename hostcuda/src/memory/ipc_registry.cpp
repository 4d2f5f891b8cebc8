#include "hostcuda/src/memory/ipc_registry.h"

namespace hostcuda {

ipc_registry &ipc() {
  static ipc_registry *const r = new ipc_registry;
  return *r;
}

bool legacy_ipc_capable(const block &k) {
  return k.owner != nullptr && k.pool == nullptr && k.graph == graph_block::no && !k.imported &&
         !k.owned && !k.freeing;
}

void forget_shared_locked(CUdeviceptr at, const block &k) {
  if (k.exported) ipc().exported.erase(k.id);
  if (k.imported) ipc().imported.erase(at);
}

}  // namespace hostcuda
