#include "stillmap/checkpoint/base/unix_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "stillmap/vmm/base/operation.h"

namespace stillmap::checkpoint {

result<socket_address> parse_address(const std::string &address) {
  const operation_scope scope("checkpoint::parse_address");
  socket_address out;
  out.name.sun_family = AF_UNIX;
  if (address.size() < (address.starts_with('@') ? 2 : 1) ||
      address.size() >= sizeof out.name.sun_path) {
    return tl::unexpected(make_error(errc::invalid_argument, "not a valid address of a Unix socket",
                                     address.size(), sizeof out.name.sun_path - 1,
                                     error_unit::bytes)
                              .value()
                              .about(address));
  }
  std::memcpy(out.name.sun_path, address.data(), address.size());
  out.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() + 1);
  if (address.front() == '@') {
    out.name.sun_path[0] = '\0';
    --out.bytes;
  }
  return out;
}

fork_closed_fd create_socket() noexcept {
  return fork_closed_fd::create(
      [] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
}

bool may_call_again() noexcept {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

status wait_for(std::span<pollfd> fds, std::chrono::milliseconds timeout,
                const std::stop_token &cancel, std::chrono::steady_clock::time_point by) {
  const operation_scope scope("checkpoint::wait_for");
  using std::chrono::milliseconds;
  constexpr milliseconds slice{20};
  const auto until = std::min(std::chrono::steady_clock::now() + timeout, by);
  for (;;) {
    if (cancel.stop_requested()) return make_error(errc::operation_canceled, "stop requested");
    const auto now = std::chrono::steady_clock::now();
    const auto left = std::chrono::duration_cast<milliseconds>(until - now);
    const int n = ::poll(fds.data(), fds.size(),
                         static_cast<int>(std::clamp(left, milliseconds(0), slice).count()));
    // A peer can have the socket be ready at any time, also without a byte to read (MSG_OOB).
    if (n > 0 && now < by) return {};
    if (n < 0 && errno != EINTR) return make_system_error(errno, "the socket cannot be polled");
    if (n >= 0 && left <= milliseconds(0)) {
      return make_error(errc::busy, "the peer did not answer in time",
                        static_cast<std::uint64_t>(timeout.count()), 0, error_unit::milliseconds);
    }
  }
}

}  // namespace stillmap::checkpoint
