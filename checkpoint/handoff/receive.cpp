#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "stillmap/checkpoint/common/page_transfer.h"
#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "stillmap/checkpoint/handoff/internal/session.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::handoff {
namespace {

using checkpoint::memory_layout;
using checkpoint::restored_memory;

class receiver {
 public:
  receiver(const device &d, connection &from, const handoff_options &options)
      : device_(d), where_(options.where), session_(d, from, options), importer_(d) {}

  result<restored_memory> run() {
    if (const status s = with_host_memory([&] { return receive_memory(); }); !s) {
      return session_.abort(s.error());
    }
    session_.ignore_cancel();
    // A lost offer message does not matter: the ownership word decides, also if the sender is dead.
    const auto offer = with_host_memory([&] { return session_.receive(kind::offer, 0, 0, 0); });
    if (offer) session_.reached(step::offer_received);
    if (!word_->commit()) {
      if (!offer) return session_.abort(offer.error());
      return make_error(errc::busy, "the sender revoked its offer");
    }
    // This process is the only owner now.
    for (const page_ptr &p : importer_.pages()) p.set_imported(false);
    session_.reached(step::committed);
    (void)session_.send(kind::committed);  // a sender that is dead need not know
    session_.reached(step::commit_sent);
    return std::move(*memory_);
  }

 private:
  status receive_memory() {
    if (!device_.capabilities().vmm) {
      return make_error(errc::not_supported, "this device cannot map pages at addresses");
    }
    STILLMAP_RETURN_IF_ERROR(session_.greet(role::receiver));
    STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_message received,
                              session_.receive(kind::layout, checkpoint::largest_layout, 1, 1));
    STILLMAP_ASSIGN_OR_RETURN(ownership_word word,
                              ownership_word::open(std::move(received.fds.front())));
    word_.emplace(std::move(word));
    STILLMAP_ASSIGN_OR_RETURN(memory_layout layout, checkpoint::decode_layout(received.body));
    STILLMAP_RETURN_IF_ERROR(check(layout, device_.capabilities().page_bytes));
    session_.reached(step::layout_received);
    STILLMAP_ASSIGN_OR_RETURN(restored_memory reserved,
                              restored_memory::reserve(device_, std::move(layout), where_));
    memory_.emplace(std::move(reserved));
    session_.reached(step::reserved);
    STILLMAP_RETURN_IF_ERROR(receive_pages());
    session_.reached(step::pages_received);
    STILLMAP_RETURN_IF_ERROR(memory_->map(importer_.pages()));
    session_.reached(step::mapped);
    const auto pidfd = fork_closed_fd::create(
        [] { return static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)); });
    const int fd = pidfd.get();
    STILLMAP_RETURN_IF_ERROR(session_.send(kind::ready, {}, {&fd, fd >= 0 ? 1U : 0U}));
    session_.reached(step::ready_sent);
    return {};
  }

  status receive_pages() {
    const memory_layout &layout = memory_->layout();
    while (importer_.pages().size() < layout.pages.size()) {
      const std::size_t most =
          std::min(connection::max_fds, layout.pages.size() - importer_.pages().size());
      STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message received,
                                session_.receive(kind::pages, 0, 1, most));
      STILLMAP_RETURN_IF_ERROR(importer_.import(layout, received.fds));
    }
    return {};
  }

  const device &device_;
  const checkpoint::placement where_;
  session session_;
  std::optional<ownership_word> word_;
  std::optional<restored_memory> memory_;
  checkpoint::page_importer importer_;
};

}  // namespace

result<restored_memory> receive(const device &d, connection &from, const handoff_options &options) {
  return with_host_memory("handoff::receive", [&] { return receiver(d, from, options).run(); });
}

}  // namespace stillmap::handoff
