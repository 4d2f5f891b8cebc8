#include "tests/checkpoint/handoff/frames.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>

namespace stillmap::handoff::testing {
namespace {

constexpr std::size_t header_bytes = 16, kind_at = 6, bytes_at = 8, fds_at = 12;
constexpr std::uint64_t a_page = std::uint64_t{2} << 20;

std::set<std::uint64_t> other_values(std::uint64_t v, std::size_t bytes) {
  const std::uint64_t all_ones = ~std::uint64_t{0} >> (64 - 8 * bytes);
  const std::uint64_t highest = (all_ones >> 1) + 1;
  std::set<std::uint64_t> out;
  for (const std::uint64_t lie : {std::uint64_t{0}, std::uint64_t{1}, v - 1, v + 1, v - a_page,
                                  v + a_page, 2 * v, v ^ highest, highest - 1, all_ones}) {
    out.insert(lie & all_ones);
  }
  out.erase(v);
  return out;
}

}  // namespace

frame::frame(std::uint16_t kind, std::string name) : name_(std::move(name)), bytes_(header_bytes) {
  const auto head = [&](const char *what, std::size_t at, std::uint64_t value, std::size_t bytes) {
    set_number(at, value, bytes);
    fields_.push_back({what, at, bytes, true});
  };
  head("magic", 0, 0x4f484d53, 4);
  head("version", 4, 1, 2);
  head("kind", kind_at, kind, 2);
  head("bytes", bytes_at, 0, 4);
  head("descriptors", fds_at, 0, 4);
}

void frame::set_number(std::size_t at, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) bytes_[at + i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint64_t frame::get_number(const field &f) const {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < f.bytes; ++i) {
    value |= std::to_integer<std::uint64_t>(bytes_[f.at + i]) << (8 * i);
  }
  return value;
}

frame &frame::number(const std::string &name, std::uint64_t value, std::size_t bytes) {
  const std::size_t at = bytes_.size();
  bytes_.resize(at + bytes);
  set_number(at, value, bytes);
  fields_.push_back({name, at, bytes, true});
  set_number(bytes_at, bytes_.size() - header_bytes, 4);
  return *this;
}

frame &frame::block(const std::string &name, std::span<const unsigned char> bytes) {
  fields_.push_back({name, bytes_.size(), bytes.size(), false});
  for (const unsigned char c : bytes) bytes_.push_back(static_cast<std::byte>(c));
  set_number(bytes_at, bytes_.size() - header_bytes, 4);
  return *this;
}

frame &frame::text(const std::string &name, const std::string &value) {
  number(name + " length", value.size(), 4);
  return block(name, {reinterpret_cast<const unsigned char *>(value.data()), value.size()});
}

frame &frame::with(std::vector<int> fds) {
  fds_ = std::move(fds);
  set_number(fds_at, fds_.size(), 4);
  return *this;
}

frame frame::with_body(std::vector<std::byte> body) const {
  frame out = *this;
  out.bytes_.resize(header_bytes);
  out.bytes_.insert(out.bytes_.end(), body.begin(), body.end());
  out.set_number(bytes_at, body.size(), 4);
  return out;
}

std::vector<std::byte> frame::body() const {
  return {bytes_.begin() + header_bytes, bytes_.end()};
}

std::vector<frame::lie> frame::lies() const {
  std::vector<lie> out;
  const auto add = [&](const std::string &what, const std::string &value, frame message) {
    out.push_back({name_ + ": " + what, value, std::move(message)});
  };
  for (const field &f : fields_) {
    if (f.is_number) {
      auto values = other_values(get_number(f), f.bytes);
      if (f.at == kind_at) {
        for (const std::uint64_t handoff : {2, 3, 4, 5, 6, 7, 8}) values.insert(handoff);
        for (std::uint64_t control = 0x100; control <= 0x109; ++control) values.insert(control);
        for (std::uint64_t control = 0x180; control <= 0x184; ++control) values.insert(control);
        values.erase(get_number(f));
      }
      for (const std::uint64_t value : values) {
        frame said = *this;
        said.set_number(f.at, value, f.bytes);
        add(f.name, std::to_string(value), std::move(said));
      }
      continue;
    }
    // NUL, escape, '/', DEL, a start byte of UTF-8 alone, and U+009B.
    for (const std::string &bad : {std::string(1, '\0'), std::string("\x1b[2J"), std::string("/"),
                                   std::string("\x7f"), std::string("\xc2\x9b")}) {
      frame said = *this;
      for (std::size_t i = 0; i < f.bytes; ++i) {
        said.bytes_[f.at + i] = static_cast<std::byte>(bad[i % bad.size()]);
      }
      if (said.bytes_ != bytes_) add(f.name, "control characters", std::move(said));
    }
  }
  const std::vector<std::byte> good = body();
  for (std::size_t n = 0; n < good.size(); ++n) {
    add("cut off", std::to_string(n),
        with_body({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n)}));
  }
  for (const std::size_t more : {std::size_t{1}, std::size_t{4}, std::size_t{2048}}) {
    std::vector<std::byte> longer = good;
    longer.resize(good.size() + more);
    add("too long", std::to_string(more), with_body(std::move(longer)));
  }
  return out;
}

void write_with(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  if (bytes.empty()) return;
  constexpr std::size_t most = 253;  // of Linux
  alignas(cmsghdr) char room[CMSG_SPACE(most * sizeof(int))] = {};
  iovec part{const_cast<std::byte *>(bytes.data()), bytes.size()};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  if (!fds.empty()) {
    m.msg_control = room;
    m.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr *const c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  const ssize_t n = ::sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n != static_cast<ssize_t>(bytes.size())) throw std::runtime_error("sendmsg");
}

void write_frames(int socket, std::span<const frame> all, std::size_t bytes) {
  for (const frame &f : all) {
    const std::size_t n = std::min(bytes, f.bytes().size());
    write_with(socket, std::span(f.bytes()).first(n), f.fds());
    bytes -= n;
  }
}

void end_writing(int socket) {
  if (::shutdown(socket, SHUT_WR) != 0) throw std::runtime_error("shutdown");
}

std::vector<disorder> disorders(const std::vector<frame> &good) {
  std::vector<disorder> out;
  for (std::size_t i = 0; i < good.size(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    const std::string name = good[i].name();
    out.push_back({"without " + name, good});
    out.back().messages.erase(out.back().messages.begin() + at);
    out.push_back({name + " twice", good});
    out.back().messages.insert(out.back().messages.begin() + at, good[i]);
    if (i + 1 < good.size()) {
      out.push_back({name + " after " + good[i + 1].name(), good});
      std::swap(out.back().messages[i], out.back().messages[i + 1]);
    }
    for (const frame &other : good) {
      if (other.name() == name) continue;
      out.push_back({other.name() + " for " + name, good});
      out.back().messages[i] = other;
    }
  }
  return out;
}

}  // namespace stillmap::handoff::testing
