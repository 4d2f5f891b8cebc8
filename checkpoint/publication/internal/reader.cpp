#include "stillmap/checkpoint/publication/internal/reader.h"

#include <utility>

#include "stillmap/checkpoint/common/published_blocks.h"
#include "stillmap/checkpoint/publication/internal/attached_core.h"
#include "stillmap/checkpoint/publication/internal/connect.h"
#include "stillmap/checkpoint/publication/internal/contents_digests.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {

result<std::variant<attached_memory, claim>> reader::run(const std::string &address,
                                                         const std::string &name, bool may_claim) {
  using outcome = std::variant<attached_memory, claim>;
  STILLMAP_RETURN_IF_ERROR(check_name(name));
  if (!device_.capabilities().vmm) {
    return make_error(errc::not_supported, "this device cannot map pages at addresses");
  }
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_channel with, connect(address, options_));
  message_stream messages(with, options_.timeout, options_.cancel);
  const attach_request request{.name = name,
                               .generation = options_.generation,
                               .device = device_.uuid(),
                               .page_bytes = device_.capabilities().page_bytes,
                               .wait = bounded(options_.wait),
                               .claim = may_claim,
                               .id = options_.id};
  STILLMAP_RETURN_IF_ERROR(messages.send(kind::attach, encode(request)));
  STILLMAP_ASSIGN_OR_RETURN(
      const checkpoint::socket_message reply,
      messages.receive(kind::attached, may_claim ? kind::claimed : kind::attached,
                       max_manifest_bytes, bounded(options_.wait) + bounded(options_.timeout)));
  if (reply.kind == static_cast<std::uint16_t>(kind::claimed)) {
    return outcome(claim(std::move(with), name));
  }
  STILLMAP_ASSIGN_OR_RETURN(attached_reply attached, decode_attached(reply.body));
  const bool asked_for = attached.manifest.name == name &&
                         (options_.generation == 0 || attached.generation == options_.generation) &&
                         (options_.id.is_zero() || attached.manifest.id() == options_.id);
  if (!asked_for) {
    return make_error(errc::corrupt, "the holder sends something else than was asked for",
                      attached.generation, options_.generation);
  }
  STILLMAP_ASSIGN_OR_RETURN(attached_memory mapped, map(with, messages, std::move(attached)));
  return outcome(std::move(mapped));
}

result<attached_memory> reader::map(checkpoint::socket_channel &with, message_stream &messages,
                                    attached_reply reply) {
  manifest &m = reply.manifest;
  if (m.device != device_.uuid()) {
    return make_error(errc::invalid_argument, "the memory was published on another device");
  }
  STILLMAP_RETURN_IF_ERROR(check(m.layout, device_.capabilities().page_bytes));
  reached(step::manifest_received);
  // Whatever the publisher could do with it.
  checkpoint::memory_layout layout = m.layout;
  for (auto &list : layout.access) {
    list = {{on_device(checkpoint::memory_layout::own_device), access_mode::read}};
  }
  std::vector<device_address> addresses = options_.addresses;
  if (addresses.size() > layout.blocks.size()) {
    return make_error(errc::invalid_argument, "the publication has fewer blocks", addresses.size(),
                      layout.blocks.size(), error_unit::items);
  }
  if (!addresses.empty()) addresses.resize(layout.blocks.size());
  STILLMAP_ASSIGN_OR_RETURN(
      checkpoint::restored_memory memory,
      addresses.empty()
          ? checkpoint::restored_memory::reserve(device_, std::move(layout), options_.where)
          : checkpoint::restored_memory::reserve_at(device_, std::move(layout), addresses));
  reached(step::reserved);
  checkpoint::page_importer importer(device_);
  STILLMAP_RETURN_IF_ERROR(messages.receive_pages(
      m.layout.pages.size(),
      [&](std::vector<owned_fd> &fds) { return importer.import(m.layout, fds); }));
  reached(step::pages_received);
  STILLMAP_RETURN_IF_ERROR(memory.map(importer.take()));
  if (options_.verify) STILLMAP_RETURN_IF_ERROR(check_digests(device_, m, memory.layout()));
  STILLMAP_RETURN_IF_ERROR(
      checkpoint::register_published(device_, references_to(m, memory.layout())));
  reached(step::mapped);
  return attached_memory(std::make_unique<attached_core>(
      std::move(with), reply.generation, std::move(m), std::move(importer), std::move(memory)));
}

}  // namespace stillmap::publication
