#include "stillmap/checkpoint/publication/internal/connect.h"

#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {

const char *name_of(step s) noexcept {
  static constexpr const char *names[] = {
      "connected",         "sealed",   "manifest sent",  "pages sent", "committed", "published",
      "manifest received", "reserved", "pages received", "mapped"};
  return names[static_cast<std::size_t>(s)];
}

result<checkpoint::socket_channel> connect(const std::string &address,
                                           const client_options &options) {
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_channel with,
                            checkpoint::socket_channel::connect(address, {}, options.cancel));
  const checkpoint::peer_credentials &peer = with.peer();
  if (!(options.allow ? options.allow(peer) : checkpoint::is_same_user_or_root(peer))) {
    return tl::unexpected(
        make_error(errc::not_supported, "the holder's user is not trusted (its uid)", peer.uid)
            .value()
            .about(address));
  }
  if (options.on_step) options.on_step(step::connected);
  return with;
}

}  // namespace stillmap::publication
