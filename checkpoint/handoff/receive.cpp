#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "stillmap/checkpoint/handoff/internal/session.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap::handoff {
namespace {

constexpr const char *op = "handoff::take";
using checkpoint::restored_memory;
using checkpoint::memory_layout;

class taking {
 public:
  taking(const device &d, connection &from, const handoff_options &how)
      : device_(d), with_(d, from, how, op) {}

  result<restored_memory> run() {
    status s = prepare();
    if (!s) return with_.give_up(s.error());
    with_.past_return();
    // An offer that is not heard of stands all the same: the ticket has it, and the giver may be
    // dead.
    const auto offered = with_.receive(kind::offer, 0, 0, 0);
    if (offered) with_.reached(step::offer_received);
    if (!whose_->take()) {
      if (!offered) return with_.give_up(offered.error());
      return make_error(errc::busy, op, "the giver took its offer back");
    }
    for (const page_ptr &p : pages_) p.set_imported(false);  // nobody else's any more
    with_.reached(step::taken);
    [[maybe_unused]] const status told = with_.send(kind::taken);  // or the giver is dead
    with_.reached(step::done);
    return std::move(*memory_);
  }

 private:
  status prepare() {
    if (!device_.capabilities().vmm) {
      return make_error(errc::not_supported, op, "this device cannot map pages at addresses");
    }
    if (status s = with_.greet(role::taker); !s) return s;
    auto came = with_.receive(kind::layout, checkpoint::largest_layout, 1, 1);
    if (!came) return tl::unexpected(came.error());
    auto whose = ticket::open(std::move(came->fds.front()));
    if (!whose) return tl::unexpected(whose.error());
    whose_.emplace(std::move(*whose));
    auto layout = checkpoint::decode_layout(came->body);
    if (!layout) return tl::unexpected(layout.error());
    if (status s = check(*layout, device_.capabilities().page_bytes); !s) return s;
    with_.reached(step::layout_received);
    auto reserved = restored_memory::reserve(device_, std::move(*layout));
    if (!reserved) return tl::unexpected(reserved.error());
    memory_.emplace(std::move(*reserved));
    with_.reached(step::reserved);
    if (status s = receive_pages(); !s) return s;
    with_.reached(step::pages_received);
    if (status s = memory_->map(pages_); !s) return s;
    with_.reached(step::mapped);
    const owned_fd life(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    const int fd = life.get();
    if (status s = with_.send(kind::ready, {}, {&fd, fd >= 0 ? 1U : 0U}); !s) return s;
    with_.reached(step::ready);
    return {};
  }

  status receive_pages() {
    const auto &wanted = memory_->layout().pages;
    const context_guard guard(device_.driver(), device_.context());  // once for all
    if (!guard.entered()) return guard.entered();
    pages_.reserve(wanted.size());
    while (pages_.size() < wanted.size()) {
      const std::size_t most = std::min(connection::most_fds, wanted.size() - pages_.size());
      auto came = with_.receive(kind::pages, 0, 1, most);
      if (!came) return tl::unexpected(came.error());
      for (const owned_fd &fd : came->fds) {
        if (status s = import(fd, wanted[pages_.size()]); !s) return s;
      }
    }
    return {};
  }

  status import(const owned_fd &fd, const memory_layout::page &wanted) {
    physical_properties expected = wanted.properties;
    if (expected.location.kind == location_kind::device) {
      expected.location.id = device_.ordinal();
    }
    auto memory = physical_memory::import_fd(device_, fd, wanted.bytes);
    if (!memory) return tl::unexpected(memory.error());
    if (memory->properties() != expected) {
      return make_error(errc::corrupt, op, "a page is not what the giver said", pages_.size());
    }
    const auto home = pool_of(wanted.bytes, expected);
    if (!home) return tl::unexpected(home.error());
    auto page = (*home)->adopt(std::move(*memory));
    if (!page) return tl::unexpected(page.error());
    pages_.push_back(std::move(*page));
    return {};
  }

  // Pages of one kind are of one pool, where more of them can come from.
  result<std::shared_ptr<page_pool>> pool_of(std::size_t bytes, const physical_properties &like) {
    for (const auto &p : pools_) {
      if (p->page_bytes() == bytes && p->properties() == like) return p;
    }
    page_pool_options options;
    options.page_bytes = bytes;
    options.location = like.location;
    options.exportable = like.exportable;
    options.rdma = like.rdma;
    options.keep_free = 0;
    auto made = page_pool::create(device_, options);
    if (made) pools_.push_back(*made);
    return made;
  }

  const device &device_;
  session with_;
  std::optional<ticket> whose_;
  std::optional<restored_memory> memory_;
  std::vector<std::shared_ptr<page_pool>> pools_;
  std::vector<page_ptr> pages_;
};

}  // namespace

result<restored_memory> take(const device &d, connection &from, const handoff_options &how) {
  return taking(d, from, how).run();
}

}  // namespace stillmap::handoff
