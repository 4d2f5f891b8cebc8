#include "stillmap/checkpoint/control/internal/server_reply.h"

#include <unistd.h>

namespace stillmap::control {

status check_server_user(const checkpoint::socket_channel &server) {
  if (::geteuid() == 0 || checkpoint::is_same_user_or_root(server.peer())) return {};
  return make_error(errc::not_supported,
                    "a process of another user listens at the address (its uid)",
                    server.peer().uid);
}

result<bytes> response_in(checkpoint::socket_message m) {
  const auto k = static_cast<kind>(m.kind);
  if (k == kind::response) return std::move(m.body);
  if (k == kind::refusal) return tl::unexpected(decode_refusal(m.body));
  return make_error(errc::corrupt,
                    m.kind < static_cast<std::uint16_t>(kind::status)
                        ? "the process at the address waits for a handoff: it is no control server"
                        : "unexpected kind of message",
                    m.kind);
}

}  // namespace stillmap::control
