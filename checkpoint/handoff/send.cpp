#include <poll.h>

#include <algorithm>

#include "stillmap/checkpoint/common/internal/wait_idle.h"
#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "stillmap/checkpoint/handoff/internal/session.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::handoff {
namespace {

constexpr const char *op = "handoff::give";

class giving {
 public:
  giving(const device &d, connection &to, const handoff_options &how)
      : device_(d), to_(to), how_(how), with_(d, to, how, op) {}

  result<given_memory> run(const std::vector<std::string> &tags) {
    auto made = ticket::create();
    if (!made) return tl::unexpected(made.error());
    status s = prepare(tags, *made);
    if (s) s = offer(*made);
    if (s) return finish();
    // Whatever went wrong: either the taker cannot take it any more, or it has.
    if (!made->revoke()) {
      if (!taker_is_dead() || !made->take_back()) return finish();
      return make_error(errc::busy, op, "the taker died as soon as it had taken; it is back here");
    }
    return with_.give_up(s.error());
  }

 private:
  status prepare(const std::vector<std::string> &tags, const ticket &whose) {
    if (status s = with_.greet(role::giver); !s) return s;
    auto what = checkpoint::describe(device_, tags);
    if (!what) return tl::unexpected(what.error());
    what_ = std::move(*what);
    if (status s = check_exportable(); !s) return s;
    const std::vector<std::byte> layout = encode(what_.layout);
    if (layout.size() > checkpoint::largest_layout) {
      return make_error(errc::not_supported, op, "the layout is larger than a message may be",
                    layout.size(), checkpoint::largest_layout);
    }
    const int fd = whose.fd();
    if (status s = with_.send(kind::layout, layout, {&fd, 1}); !s) return s;
    with_.reached(step::layout_sent);
    if (status s = send_pages(); !s) return s;
    with_.reached(step::pages_sent);
    auto ready = with_.receive(kind::ready, 0, 0, 1);
    if (!ready) return tl::unexpected(ready.error());
    if (!ready->fds.empty()) life_ = std::move(ready->fds.front());
    with_.reached(step::told_ready);
    return {};
  }

  // Before anything is sent: what the driver would refuse in the middle.
  status check_exportable() const {
    for (const auto &p : what_.layout.places) {
      if (what_.layout.pages[p.page].properties.exportable == handle_type::posix_fd) continue;
      return make_error(errc::not_supported, op,
                    "a page was not created exportable as a file descriptor", p.at.value());
    }
    return {};
  }

  // At most so many descriptors are open at once.
  status send_pages() {
    for (std::size_t i = 0; i < what_.pages.size(); i += connection::most_fds) {
      const std::size_t n = std::min(connection::most_fds, what_.pages.size() - i);
      std::vector<owned_fd> open;
      std::vector<int> fds;
      {
        const context_guard guard(device_.driver(), device_.context());
        if (!guard.entered()) return guard.entered();
        for (std::size_t k = 0; k < n; ++k) {
          const auto fd = device_.driver().export_fd(what_.pages[i + k]->handle());
          if (!fd) return tl::unexpected(fd.error());
          open.push_back(owned_fd(*fd));
          fds.push_back(*fd);
        }
      }
      if (status s = with_.send(kind::pages, {}, fds); !s) return s;
    }
    return {};
  }

  status offer(ticket &whose) {
    if (how_.quiesce) {
      if (status s = how_.quiesce(); !s) return s;
    }
    const auto idle = how_.idle ? std::optional<fence>(how_.idle()) : std::nullopt;
    if (status s = checkpoint::wait_until_idle(device_, idle); !s) return s;
    if (status s = check_unchanged(); !s) return s;
    with_.reached(step::quiet);
    if (how_.cancel.stop_requested()) return make_error(errc::busy, op, "cancelled");
    if (!whose.offer()) return make_error(errc::corrupt, op, "the taker changed the ticket");
    if (status s = with_.send(kind::offer); !s) return s;
    with_.reached(step::offered);
    const auto taken = with_.receive(kind::taken, 0, 0, 0);
    if (!taken) return tl::unexpected(taken.error());
    if (whose.now() != ownership::taker) {
      return make_error(errc::corrupt, op, "the taker says that it took, and did not");
    }
    with_.reached(step::told_taken);
    return {};
  }

  status check_unchanged() const {
    for (const auto &b : what_.layout.blocks) {
      const auto now = device_.space().block_at(b.range.begin);
      if (now && now->range() == b.range && now->generation() == b.generation) continue;
      return make_error(errc::busy, op, "pages of these tags were changed meanwhile",
                    b.range.begin.value());
    }
    return {};
  }

  bool taker_is_dead() const {
    if (life_.get() < 0) return false;  // nobody can say
    pollfd p{life_.get(), POLLIN, 0};
    // Its socket goes before it is dead, by a moment.
    return ::poll(&p, 1, 1000) > 0;
  }

  // It is the taker's. What is here is taken away from its addresses; the pages must not be used
  // again by whoever asks their pool.
  given_memory finish() {
    given_memory out{what_.layout.blocks.size(),
                     what_.layout.places.size(),
                     what_.pages.size(),
                     what_.layout.bytes(),
                     true,
                     to_.who()};
    for (const page_ptr &p : what_.pages) p.set_imported(true);
    if (const status s = checkpoint::take_away(device_, what_); !s) {
      report_background_error(s.error());
      out.unmapped = false;
    }
    what_.pages.clear();
    with_.reached(step::given);
    return out;
  }

  const device &device_;
  connection &to_;
  const handoff_options &how_;
  session with_;
  checkpoint::described_memory what_;
  owned_fd life_;  // readable when the taker is dead
};

}  // namespace

result<given_memory> give(const device &d, connection &to, const std::vector<std::string> &tags,
                          const handoff_options &how) {
  return giving(d, to, how).run(tags);
}

}  // namespace stillmap::handoff
