#include "tests/checkpoint/migration/faulty_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

namespace stillmap::migration::testing {
namespace {

sockaddr_in local(std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(port);
  return out;
}

}  // namespace

faulty_link::faulty_link(std::string target, link_fault fault)
    : target_(std::move(target)),
      fault_(fault),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_in name = local(0);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    throw std::runtime_error("faulty_link: listen");
  }
  acceptor_ = std::jthread([this] { accept_all(); });
}

faulty_link::~faulty_link() {
  over_ = true;
  acceptor_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const pair &p : pairs_) {
      ::shutdown(p.near.get(), SHUT_RDWR);
      ::shutdown(p.far.get(), SHUT_RDWR);
    }
  }
  pairs_.clear();
}

std::string faulty_link::address() const {
  sockaddr_in name{};
  socklen_t bytes = sizeof name;
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr *>(&name), &bytes);
  return "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
}

void faulty_link::heal() {
  healed_ = true;
  if (!fault_.stops) return;
  const std::lock_guard lock(mutex_);
  // What was stopped never arrives.
  for (const pair &p : pairs_) {
    ::shutdown(p.near.get(), SHUT_RDWR);
    ::shutdown(p.far.get(), SHUT_RDWR);
  }
}

void faulty_link::accept_all() {
  const auto port = static_cast<std::uint16_t>(std::stoi(target_.substr(target_.rfind(':') + 1)));
  while (!over_) {
    pollfd p{listener_.get(), POLLIN, 0};
    if (::poll(&p, 1, 20) <= 0) continue;
    owned_fd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (near.get() < 0) continue;
    if (broken_ && !healed_ && !fault_.stops) continue;  // closes it
    owned_fd far(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in name = local(port);
    if (::connect(far.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name) != 0) continue;
    const int on = 1;
    ::setsockopt(near.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(far.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::lock_guard lock(mutex_);
    pair &made = pairs_.emplace_back();
    made.near = std::move(near);
    made.far = std::move(far);
    made.forward = std::jthread([this, &made] { pass(made, true); });
    made.backward = std::jthread([this, &made] { pass(made, false); });
  }
}

void faulty_link::pass(pair &p, bool forward) {
  const int from = forward ? p.near.get() : p.far.get(), to = forward ? p.far.get() : p.near.get();
  const std::size_t limit = forward ? fault_.forward : fault_.backward;
  std::vector<char> buffer(fault_.piece);
  const bool old_connection = !healed_;
  for (;;) {
    const ssize_t n = ::recv(from, buffer.data(), buffer.size(), 0);
    if (n <= 0) break;
    auto bytes = static_cast<std::size_t>(n);
    const bool faulty = old_connection && !healed_;
    if (faulty && fault_.delay_ms != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(fault_.delay_ms));
    }
    const std::size_t before = passed_[forward ? 0 : 1].fetch_add(bytes);
    bool breaks = false;
    if (faulty && before + bytes > limit) {
      bytes = limit > before ? limit - before : 0;
      breaks = true;
    }
    if (faulty && broken_) {
      if (!fault_.stops) break;
      continue;  // swallowed
    }
    if (breaks) broken_ = true;
    if (bytes != 0 && ::send(to, buffer.data(), bytes, MSG_NOSIGNAL) < 0) break;
    if (breaks && !fault_.stops) break;
  }
  ::shutdown(p.near.get(), SHUT_RDWR);
  ::shutdown(p.far.get(), SHUT_RDWR);
}

}  // namespace stillmap::migration::testing
