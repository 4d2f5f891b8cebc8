// What both sides do alike. Internal to give and take.
#pragma once

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"

namespace stillmap::handoff {

class session {
 public:
  session(const device &d, connection &with, const handoff_options &how, const char *op)
      : device_(d), with_(with), how_(how), op_(op) {}

  // Checks who the other side is, and that it speaks of the same device.
  status greet(role as);
  status send(kind k, std::span<const std::byte> body = {}, std::span<const int> fds = {});
  // Errors: corrupt where another kind came; the other side's refusal.
  result<message> receive(kind k, std::size_t limit, std::size_t fds_at_least,
                          std::size_t fds_at_most);
  // Tells the other side why, if it still listens, and returns it.
  tl::unexpected<error> give_up(const error &e);
  void reached(step s) const {
    if (how_.at) how_.at(s);
  }
  // From now on nothing may be interrupted.
  void past_return() { cancel_ = {}; }

 private:
  const device &device_;
  connection &with_;
  const handoff_options &how_;
  const char *op_;
  std::stop_token cancel_ = how_.cancel;
  bool refused_ = false;  // by the other side
};

}  // namespace stillmap::handoff
