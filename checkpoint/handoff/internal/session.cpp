#include "stillmap/checkpoint/handoff/internal/session.h"

#include <unistd.h>

#include <algorithm>

namespace stillmap::handoff {

const char *name_of(step s) noexcept {
  static constexpr const char *names[] = {
      "greeted",    "layout sent",    "pages sent",      "told ready", "quiet",          "offered",
      "told taken", "given",          "layout received", "reserved",   "pages received", "mapped",
      "ready",      "offer received", "taken",           "done"};
  return names[static_cast<std::size_t>(s)];
}

status session::greet(role as) {
  const bool welcome = how_.allow ? how_.allow(with_.who()) : with_.who().uid == ::geteuid();
  if (!welcome) {
    return give_up({make_error_code(errc::not_supported), op_,
                    "the process at the other end is not allowed (its user)", with_.who().uid});
  }
  const hello mine{as, device_.uuid(), device_.capabilities().page_bytes};
  if (status s = send(kind::hello, encode(mine)); !s) return s;
  const auto came = receive(kind::hello, 64, 0, 0);
  if (!came) return tl::unexpected(came.error());
  const auto theirs = decode_hello(came->body);
  if (!theirs) return give_up(theirs.error());
  const auto no = [&](const char *why) {
    return give_up({make_error_code(errc::invalid_argument), op_, why});
  };
  if (theirs->as == as) return no("both sides want to do the same");
  if (theirs->device != mine.device) return no("the other side uses another device");
  if (theirs->page_bytes != mine.page_bytes) return no("the other side has other pages");
  reached(step::greeted);
  return {};
}

status session::send(kind k, std::span<const std::byte> body, std::span<const int> fds) {
  return with_.send(static_cast<std::uint16_t>(k), body, fds, how_.wait, cancel_);
}

result<message> session::receive(kind k, std::size_t limit, std::size_t fds_at_least,
                                 std::size_t fds_at_most) {
  auto came = with_.receive(std::max<std::size_t>(limit, 64), how_.wait, cancel_);
  if (!came) return came;
  if (came->kind == static_cast<std::uint16_t>(kind::refusal)) {
    refused_ = true;
    return tl::unexpected(checkpoint::decode_refusal(came->body, op_));
  }
  if (came->kind != static_cast<std::uint16_t>(k) || came->fds.size() < fds_at_least ||
      came->fds.size() > fds_at_most) {
    return make_error(errc::corrupt, op_, "another message was expected", came->kind,
                  static_cast<std::uint64_t>(k));
  }
  return came;
}

tl::unexpected<error> session::give_up(const error &e) {
  if (!refused_) {
    [[maybe_unused]] const status told = with_.send(static_cast<std::uint16_t>(kind::refusal),
                                                    checkpoint::encode(e), {}, patience(0), {});
  }
  return tl::unexpected<error>(e);
}

}  // namespace stillmap::handoff
