#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/publication/internal/connect.h"
#include "stillmap/checkpoint/publication/internal/messages.h"
#include "stillmap/checkpoint/publication/internal/publisher.h"
#include "stillmap/checkpoint/publication/publication.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {

result<published_memory> publish(const device &d, const std::string &address,
                                 const std::string &name, std::span<const std::string> tags,
                                 const publish_options &options) {
  return with_host_memory("publication::publish", [&]() -> result<published_memory> {
    STILLMAP_ASSIGN_OR_RETURN(
        const auto alone, checkpoint::tag_lease::take(d, tags, checkpoint::lease_kind::exclusive));
    publisher p(d, options);
    STILLMAP_RETURN_IF_ERROR(p.describe(name, tags));
    STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_channel to, connect(address, options));
    return p.send(to);
  });
}

result<std::vector<held_publication>> list(const std::string &address,
                                           const client_options &options) {
  return with_host_memory("publication::list", [&]() -> result<std::vector<held_publication>> {
    STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_channel to, connect(address, options));
    message_stream messages(to, options.timeout, options.cancel);
    STILLMAP_RETURN_IF_ERROR(messages.send(kind::list, encode_version()));
    STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message reply,
                              messages.receive(kind::listing, max_listing_bytes));
    return decode<listing>(reply.body);
  });
}

result<std::uint64_t> withdraw(const std::string &address, const std::string &name,
                               const client_options &options) {
  return with_host_memory("publication::withdraw", [&]() -> result<std::uint64_t> {
    STILLMAP_RETURN_IF_ERROR(check_name(name));
    STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_channel to, connect(address, options));
    message_stream messages(to, options.timeout, options.cancel);
    STILLMAP_RETURN_IF_ERROR(messages.send(kind::withdraw, encode(withdraw_request{name})));
    STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message reply,
                              messages.receive(kind::withdrawn, max_request_bytes));
    STILLMAP_ASSIGN_OR_RETURN(const generation_reply withdrawn,
                              decode<generation_reply>(reply.body));
    return withdrawn.generation;
  });
}

}  // namespace stillmap::publication
