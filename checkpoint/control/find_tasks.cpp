#include "stillmap/checkpoint/control/find_tasks.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "stillmap/checkpoint/control/internal/abstract_sockets.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::control {
namespace {

namespace fs = std::filesystem;

bool is_control_socket(std::string_view name) {
  return name.ends_with("control");
}

void add_abstract(std::vector<std::string> &out) {
  for (const abstract_socket &s : abstract_sockets("@stillmap")) {
    if (s.listens && is_control_socket(s.name)) out.push_back(s.name);
  }
}

status add_of_folder(const std::string &folder, found_tasks &out) {
  std::error_code trouble;
  for (fs::directory_iterator at(folder, trouble), end; !trouble && at != end;
       at.increment(trouble)) {
    // Not what a link leads to: whoever made it may have no right to connect there.
    std::error_code ignored;
    if (!fs::is_socket(at->symlink_status(ignored))) continue;
    if (is_control_socket(at->path().native())) {
      out.sockets.push_back(at->path().string());
    } else {
      ++out.other_sockets;
    }
  }
  if (!trouble) return {};
  return make_system_error(trouble.value(), "the folder cannot be read", folder);
}

}  // namespace

result<found_tasks> find_tasks(std::span<const std::string> folders) {
  return with_host_memory("control::find_tasks", [&]() -> result<found_tasks> {
    found_tasks out;
    add_abstract(out.sockets);
    for (const std::string &folder : folders) {
      STILLMAP_RETURN_IF_ERROR(add_of_folder(folder, out));
    }
    std::sort(out.sockets.begin(), out.sockets.end());
    out.sockets.erase(std::unique(out.sockets.begin(), out.sockets.end()), out.sockets.end());
    return out;
  });
}

}  // namespace stillmap::control
