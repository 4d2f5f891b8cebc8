#include "stillmap/checkpoint/migration/group.h"

#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {

result<group_id> make_group_id() {
  return with_host_memory("migration::make_group_id", []() -> result<group_id> {
    STILLMAP_ASSIGN_OR_RETURN(const auto id, image::make_id());
    return group_id{id.bytes};
  });
}

result<group_state> advance_group(transport &decider, const group_id &group,
                                  std::optional<group_state> to, std::string_view certificate,
                                  std::chrono::milliseconds timeout, group_state seen,
                                  std::chrono::milliseconds wait, std::string *found) {
  return with_host_memory("migration::advance_group", [&]() -> result<group_state> {
    STILLMAP_ASSIGN_OR_RETURN(const auto c, decider.connect(timeout));
    STILLMAP_RETURN_IF_ERROR(c->handshake(timeout));
    if (!certificate.empty() && c->peer().fingerprint != certificate) {
      return make_error(errc::not_supported,
                        "this is not the machine that decides for the group: it has another "
                        "certificate");
    }
    const group_query q{group, to, seen, static_cast<std::uint32_t>(wait.count())};
    STILLMAP_RETURN_IF_ERROR(send(*c, kind::group, encode(q), timeout));
    STILLMAP_ASSIGN_OR_RETURN(const message m, receive(*c, kind::group_result, 0, timeout + wait));
    if (m.head.number > static_cast<std::uint64_t>(group_state::aborted)) {
      return make_error(errc::corrupt, "the decider replied with an unknown state of the group",
                        m.head.number);
    }
    if (found != nullptr) *found = c->peer().fingerprint;
    return static_cast<group_state>(m.head.number);
  });
}

}  // namespace stillmap::migration
