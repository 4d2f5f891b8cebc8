#include "tools/stillmap/task/data_channels.h"

#include <cstdlib>

#include "stillmap/vmm/base/try.h"

#ifdef STILLMAP_COMMAND_UCX  // the build has stillmap::ucx
#include "stillmap/checkpoint/ucx/data_transport.h"
#endif

namespace stillmap::tool {

outcome<data_channels> open_ucx(const std::string &address) {
  data_channels out;
  if (address.empty()) return out;
#ifdef STILLMAP_COMMAND_UCX
  // UCX reads it as it is loaded. On standard output its log would be in the middle of a JSON document.
  ::setenv("UCX_LOG_FILE", "stderr", 0);
  STILLMAP_ASSIGN_OR_RETURN(out.acceptor, about(ucx::create_data_acceptor(address), address));
  STILLMAP_ASSIGN_OR_RETURN(out.connector, about(ucx::create_data_connector(), address));
  return out;
#else
  return fail(
      exit_refused,
      "--ucx: this command was built without UCX: build it where UCX's headers are installed "
      "(Debian: libucx-dev)");
#endif
}

}  // namespace stillmap::tool
