// Data channels of migrations over UCX, where the command was built with it.
#pragma once

#include <memory>
#include <string>

#include "stillmap/checkpoint/migration/transport.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct data_channels {
  std::shared_ptr<migration::data_acceptor> acceptor;
  std::shared_ptr<migration::data_connector> connector;
};

// Listens at `address`, and can connect to others that do. Empty: neither, and UCX is not loaded.
// Errors: exit_refused (the command was built without UCX, UCX is not installed or cannot start), exit_usage (malformed
//         address), exit_busy (the address is in use).
outcome<data_channels> open_ucx(const std::string &address);

}  // namespace stillmap::tool
