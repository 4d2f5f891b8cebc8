#include "tools/stillmap/doctor/checkpoint.h"

namespace stillmap::tool {

finding handoff(const capabilities &can) {
  finding f{"handoff", "handoff", works::yes,
            "pages created with handle_type::posix_fd move to another process without a copy", ""};
  if (can.posix_fd_export) {
    if (!can.fabric_export) f.says += "; only on this machine: fabric handles do not work";
    return f;
  }
  f.does = works::no;
  if (!can.vmm) {
    f.says = "needs virtual memory management";
    f.fix = "save and restore an image instead (stillmap task snapshot, stillmap image restore)";
  } else {
    f.says =
        can.wsl ? "WSL 2 exports no file descriptors" : "pages cannot be exported as descriptors";
    f.fix = "save and restore an image, or migrate over the loopback";
  }
  return f;
}

}  // namespace stillmap::tool
