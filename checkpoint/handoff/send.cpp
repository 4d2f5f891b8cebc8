#include "stillmap/checkpoint/common/page_transfer.h"
#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "stillmap/checkpoint/handoff/internal/process_end.h"
#include "stillmap/checkpoint/handoff/internal/session.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::handoff {
namespace {

class sender {
 public:
  sender(const device &d, connection &to, const handoff_options &options)
      : device_(d), to_(to), options_(options), session_(d, to, options) {}

  result<sent_memory> run(std::span<const std::string> tags) {
    STILLMAP_ASSIGN_OR_RETURN(ownership_word word, ownership_word::create());
    status s = with_host_memory([&] { return send_memory(tags, word); });
    if (s) s = with_host_memory([&] { return offer(word); });
    if (s) return release();
    // On any failure: revoke, so that the receiver cannot commit any more, unless it has already.
    // Before the offer it cannot, whatever it wrote: work may still run on the memory.
    if (!word.revoke() && offered_) {
      if (!receiver_is_dead() || !word.take_back()) return release();
      return make_error(errc::busy, "the receiver died at the commit; the memory was taken back");
    }
    return session_.abort(s.error());
  }

 private:
  status send_memory(std::span<const std::string> tags, const ownership_word &word) {
    STILLMAP_RETURN_IF_ERROR(session_.greet(role::sender));
    STILLMAP_ASSIGN_OR_RETURN(memory_, checkpoint::describe(device_, tags));
    STILLMAP_RETURN_IF_ERROR(checkpoint::check_exportable(memory_.layout));
    const std::vector<std::byte> layout = encode(memory_.layout);
    if (layout.size() > checkpoint::largest_layout) {
      return make_error(errc::not_supported, "the memory has too many mappings for one layout",
                        layout.size(), checkpoint::largest_layout, error_unit::bytes);
    }
    const int fd = word.fd();
    STILLMAP_RETURN_IF_ERROR(session_.send(kind::layout, layout, {&fd, 1}));
    session_.reached(step::layout_sent);
    STILLMAP_RETURN_IF_ERROR(checkpoint::export_pages(
        device_, memory_.pages, connection::max_fds,
        [&](std::span<const int> fds) { return session_.send(kind::pages, {}, fds); }));
    session_.reached(step::pages_sent);
    STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_message ready,
                              session_.receive(kind::ready, 0, 0, 1));
    if (!ready.fds.empty() && is_pidfd_of(ready.fds.front().get(), to_.peer().pid)) {
      receiver_pidfd_ = fork_closed_fd::adopt(ready.fds.front().release());
    }
    session_.reached(step::ready_received);
    return {};
  }

  status offer(ownership_word &word) {
    if (options_.quiesce) STILLMAP_RETURN_IF_ERROR(options_.quiesce());
    const auto idle = options_.idle ? std::optional<fence>(options_.idle()) : std::nullopt;
    STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(device_, idle));
    STILLMAP_RETURN_IF_ERROR(check_unchanged());
    session_.reached(step::idle);
    if (options_.cancel.stop_requested()) {
      return make_error(errc::operation_canceled, "stop requested");
    }
    if (!word.offer()) {
      return make_error(errc::corrupt, "the receiver changed the ownership word");
    }
    offered_ = true;
    STILLMAP_RETURN_IF_ERROR(session_.send(kind::offer));
    session_.reached(step::offer_sent);
    STILLMAP_RETURN_IF_ERROR(session_.receive(kind::committed, 0, 0, 0));
    if (word.load() != ownership::receiver) {
      return make_error(errc::corrupt, "the receiver reports a commit that it did not make");
    }
    session_.reached(step::commit_received);
    return {};
  }

  status check_unchanged() const {
    for (const auto &b : memory_.layout.blocks) {
      const auto now = device_.space().block_at(b.range.begin);
      if (now && now->range() == b.range && now->generation() == b.generation) continue;
      return make_error(errc::busy, "pages of these tags were changed meanwhile",
                        b.range.begin.value(), 0, error_unit::address);
    }
    return {};
  }

  // Without a pidfd of the receiver, nothing can be said.
  bool receiver_is_dead() const {
    return receiver_pidfd_.get() >= 0 && has_ended(receiver_pidfd_.get(), to_.peer().pid);
  }

  // The receiver owns the memory. Unmaps it here; the pools must not hand out its pages again.
  sent_memory release() noexcept {
    sent_memory out{memory_.layout.blocks.size(),
                    memory_.layout.places.size(),
                    memory_.pages.size(),
                    memory_.layout.bytes(),
                    true,
                    to_.peer()};
    for (const page_ptr &p : memory_.pages) p.set_imported(true);
    memory_
        .layout = {};  // no longer needed: gives room to the plan where the host has no memory left
    if (const status s = checkpoint::detach_pages(device_, memory_); !s) {
      report_background_error(s.error());
      out.unmapped = false;
    }
    memory_.pages.clear();
    session_.reached(step::released);
    return out;
  }

  const device &device_;
  connection &to_;
  const handoff_options &options_;
  session session_;
  checkpoint::described_memory memory_;
  bool offered_ = false;
  fork_closed_fd receiver_pidfd_;  // readable when the receiver is dead
};

}  // namespace

result<sent_memory> send(const device &d, connection &to, std::span<const std::string> tags,
                         const handoff_options &options) {
  return with_host_memory("handoff::send", [&]() -> result<sent_memory> {
    STILLMAP_ASSIGN_OR_RETURN(
        const auto alone, checkpoint::tag_lease::take(d, tags, checkpoint::lease_kind::exclusive));
    return sender(d, to, options).run(tags);
  });
}

}  // namespace stillmap::handoff
