#include "stillmap/checkpoint/handoff/internal/session.h"

#include <unistd.h>

#include <algorithm>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::handoff {

const char *name_of(step s) noexcept {
  static constexpr const char *names[] = {
      "greeted",        "layout sent",     "pages sent", "ready received",  "idle",
      "offer sent",     "commit received", "released",   "layout received", "reserved",
      "pages received", "mapped",          "ready sent", "offer received",  "committed",
      "commit sent"};
  return names[static_cast<std::size_t>(s)];
}

status session::greet(role own) {
  const peer_credentials &peer = peer_.peer();
  if (!(options_.allow ? options_.allow(peer) : checkpoint::is_same_user_or_root(peer))) {
    return abort(make_error(errc::not_supported,
                            "the user of the peer process is not allowed (its uid)", peer.uid)
                     .value());
  }
  const hello mine{own, device_.uuid(), device_.capabilities().page_bytes};
  STILLMAP_RETURN_IF_ERROR(send(kind::hello, encode(mine)));
  STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message received,
                            receive(kind::hello, 64, 0, 0));
  const auto theirs = decode_hello(received.body);
  if (!theirs) return abort(theirs.error());
  const auto no = [&](const char *reason) {
    return abort(make_error(errc::invalid_argument, reason).value());
  };
  if (theirs->as == own) return no("both processes have the same role");
  if (theirs->device != mine.device) return no("the peer uses another device");
  if (theirs->page_bytes != mine.page_bytes) return no("the peer uses another page size");
  reached(step::greeted);
  return {};
}

status session::send(kind k, std::span<const std::byte> body, std::span<const int> fds) {
  return peer_.send(static_cast<std::uint16_t>(k), body, fds, options_.timeout, cancel_, by());
}

result<checkpoint::socket_message> session::receive(kind k, std::size_t limit, std::size_t min_fds,
                                                    std::size_t max_fds) {
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_message received,
                            peer_.receive(std::max(limit, checkpoint::largest_peer_error),
                                          options_.timeout, cancel_, by()));
  if (received.kind == static_cast<std::uint16_t>(kind::error)) {
    peer_failed_ = true;
    return tl::unexpected(checkpoint::decode_peer_error(received.body));
  }
  if (received.kind != static_cast<std::uint16_t>(k) || received.body.size() > limit ||
      received.fds.size() < min_fds || received.fds.size() > max_fds) {
    return make_error(errc::corrupt, "the peer sent an unexpected message", received.kind,
                      static_cast<std::uint64_t>(k));
  }
  return received;
}

tl::unexpected<error> session::abort(const error &e) noexcept {
  if (!peer_failed_) {
    // The peer may be gone; the error to return is the first one.
    (void)with_host_memory([&] {
      return peer_.send(static_cast<std::uint16_t>(kind::error), checkpoint::encode(e), {},
                        std::chrono::milliseconds(0), {});
    });
  }
  return tl::unexpected(e);
}

}  // namespace stillmap::handoff
