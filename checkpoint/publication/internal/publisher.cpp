#include "stillmap/checkpoint/publication/internal/publisher.h"

#include <string_view>
#include <utility>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/common/page_transfer.h"
#include "stillmap/checkpoint/common/published_blocks.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/publication/internal/contents_digests.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::publication {

status publisher::describe(const std::string &name, std::span<const std::string> tags) {
  STILLMAP_RETURN_IF_ERROR(check_name(name));
  if (options_.metadata.size() > max_metadata_bytes) {
    return make_error(errc::invalid_argument, "the metadata is too long", options_.metadata.size(),
                      max_metadata_bytes, error_unit::bytes);
  }
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::described_memory memory,
                            checkpoint::describe(device_, tags));
  if (!memory.layout.published.empty()) {
    return make_error(errc::not_supported, "the memory is published already",
                      memory.layout.published.front().range.begin.value(), 0, error_unit::address);
  }
  STILLMAP_RETURN_IF_ERROR(checkpoint::check_exportable(memory.layout));
  manifest_.name = name;
  manifest_.device = device_.uuid();
  manifest_.page_bytes = device_.capabilities().page_bytes;
  manifest_.layout = std::move(memory.layout);
  manifest_.metadata.assign(options_.metadata.begin(), options_.metadata.end());
  pages_ = std::move(memory.pages);
  return {};
}

result<published_memory> publisher::send(checkpoint::socket_channel &to) {
  STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(device_, options_.idle));
  STILLMAP_RETURN_IF_ERROR(set_access(false));
  message_stream messages(to, options_.timeout, options_.cancel);
  if (const status sent = with_host_memory([&] { return send_all(messages); }); !sent) {
    undo();
    messages.refuse(sent.error());
    return tl::unexpected(sent.error());
  }
  // From here on the holder may have it, whatever happens to its reply.
  for (const page_ptr &p : pages_) p.set_imported(true);
  reached(step::committed);
  return confirm(to);
}

result<published_memory> publisher::confirm(checkpoint::socket_channel &to) {
  message_stream messages(to, options_.timeout, {});  // to stop is too late
  const auto reply = with_host_memory([&]() -> result<generation_reply> {
    STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message m,
                              messages.receive(kind::published, max_request_bytes));
    return decode<generation_reply>(m.body);
  });
  if (reply) {
    reached(step::published);
    return published_memory{reply->generation, id_, pages_.size(), manifest_.layout.bytes()};
  }
  // A holder that refuses has published nothing.
  if (reply.error().reason == std::string_view(checkpoint::peer_refused)) {
    for (const page_ptr &p : pages_) p.set_imported(false);
    undo();
    return tl::unexpected(reply.error());
  }
  const error in_doubt = make_error(errc::busy,
                                    "the holder did not confirm: the memory may be published, and "
                                    "stays read-only")
                             .value();
  const auto with_cause = with_host_memory(
      [&]() -> result<error> { return in_doubt.with({.cause = reply.error().message()}); });
  return tl::unexpected(with_cause ? *with_cause : in_doubt);
}

void publisher::undo() {
  if (const status undone = with_host_memory([&] { return set_access(true); }); !undone) {
    report_background_error(undone.error());
  }
}

status publisher::send_all(message_stream &to) {
  reached(step::sealed);
  if (options_.digests) STILLMAP_RETURN_IF_ERROR(compute_digests(device_, manifest_));
  id_ = manifest_.id();
  // Has no effect while no other process has the pages.
  STILLMAP_RETURN_IF_ERROR(
      checkpoint::register_published(device_, references_to(manifest_, manifest_.layout)));
  const std::vector<std::byte> body = encode_publish(manifest_);
  if (body.size() > max_manifest_bytes) {
    return make_error(errc::not_supported, "the memory has too many mappings for one manifest",
                      body.size(), max_manifest_bytes, error_unit::bytes);
  }
  STILLMAP_RETURN_IF_ERROR(to.send(kind::publish, body));
  reached(step::manifest_sent);
  STILLMAP_RETURN_IF_ERROR(
      checkpoint::export_pages(device_, pages_, checkpoint::socket_channel::max_fds,
                               [&](std::span<const int> fds) { return to.send_pages(fds); }));
  reached(step::pages_sent);
  STILLMAP_RETURN_IF_ERROR(to.receive(kind::ready, 0));
  if (options_.cancel.stop_requested()) {
    return make_error(errc::operation_canceled, "stop requested");
  }
  return to.send(kind::commit);
}

std::vector<publisher::access_run> publisher::access_runs() const {
  std::vector<access_run> out;
  auto block = manifest_.layout.blocks.begin();
  for (const auto &p : manifest_.layout.places) {
    const virtual_range range{p.at, manifest_.layout.pages[p.page].bytes};
    const bool same_block = block->range.contains(p.at);
    while (!block->range.contains(p.at)) ++block;
    if (same_block && !out.empty() && out.back().range.end() == p.at &&
        out.back().access == p.access) {
      out.back().range.bytes += range.bytes;
    } else {
      out.push_back({range, p.access});
    }
  }
  return out;
}

status publisher::set_access(bool writable) {
  std::vector<std::vector<access_grant>> access = manifest_.layout.access;
  for (auto &list : access) {
    for (access_grant &g : list) {
      if (g.location.kind == location_kind::device) g.location.id = device_.ordinal();
      if (!writable && g.mode == access_mode::read_write) g.mode = access_mode::read;
    }
  }
  remap_plan plan({});
  for (const access_run &r : access_runs()) plan.grant(r.range, access[r.access]);
  return plan.empty() ? status() : device_.space().apply(std::move(plan));
}

}  // namespace stillmap::publication
