#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/publication/attached_memory.h"
#include "stillmap/checkpoint/publication/internal/publisher.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {

claim::claim(checkpoint::socket_channel with, std::string name) noexcept
    : holder_(std::move(with)), name_(std::move(name)) {}
claim::claim(claim &&) noexcept = default;
claim &claim::operator=(claim &&) noexcept = default;
claim::~claim() = default;

const std::string &claim::name() const {
  return name_;
}

result<published_memory> claim::publish(const device &d, std::span<const std::string> tags,
                                        const publish_options &options) && {
  return with_host_memory("claim::publish", [&]() -> result<published_memory> {
    checkpoint::socket_channel to = std::move(holder_);
    STILLMAP_ASSIGN_OR_RETURN(
        const auto alone, checkpoint::tag_lease::take(d, tags, checkpoint::lease_kind::exclusive));
    publisher p(d, options);
    STILLMAP_RETURN_IF_ERROR(p.describe(name_, tags));
    return p.send(to);
  });
}

}  // namespace stillmap::publication
