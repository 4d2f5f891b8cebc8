#include "stillmap/checkpoint/migration/internal/connection_list.h"

#include <algorithm>

namespace stillmap::migration {

std::size_t connection_list::count(int state) const {
  return static_cast<std::size_t>(
      std::count_if(all_.begin(), all_.end(),
                    [state](const accepted_connection &c) { return c.state == state; }));
}

void connection_list::make_room_for(const std::string &host) noexcept {
  const auto begins = [](const accepted_connection &c) {
    return c.state == accepted_connection::handshake || c.state == accepted_connection::refused;
  };
  const auto is_refused = [](const accepted_connection &c) {
    return c.state == accepted_connection::refused;
  };
  const auto is_silent = [](const accepted_connection &c) { return !c.with->handshake_begun(); };
  const auto any = [](const accepted_connection &) { return true; };
  const auto dismiss_one = [&](const auto &of) {
    const auto oldest = [&](const auto &kind) {
      return std::find_if(all_.begin(), all_.end(),
                          [&](const accepted_connection &c) { return of(c) && kind(c); });
    };
    auto c = oldest(is_refused);
    if (c == all_.end()) c = oldest(is_silent);
    if (c == all_.end()) c = oldest(any);
    c->state = accepted_connection::dismissed;
    c->with->shutdown();
  };
  const auto begins_here = [&](const accepted_connection &c) {
    return begins(c) && c.host == host;
  };
  const auto here = std::count_if(all_.begin(), all_.end(), begins_here);
  if (here >= static_cast<std::ptrdiff_t>(max_handshakes_of_host)) {
    dismiss_one(begins_here);
  } else if (std::count_if(all_.begin(), all_.end(), begins) >=
             static_cast<std::ptrdiff_t>(max_handshakes)) {
    dismiss_one(begins);
  }
}

void connection_list::remove_ended() noexcept {
  all_.remove_if([](const accepted_connection &c) { return c.state == accepted_connection::over; });
}

void connection_list::shutdown() noexcept {
  for (const accepted_connection &c : all_) {
    if (c.with) c.with->shutdown();
  }
}

}  // namespace stillmap::migration
