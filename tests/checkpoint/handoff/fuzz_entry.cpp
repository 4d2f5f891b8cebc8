#include "tests/checkpoint/handoff/fuzz_entry.h"

#include <sys/socket.h>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "tests/checkpoint/handoff/hostile_peer.h"
#include "tests/checkpoint/handoff/small_task.h"
#include "tests/support/fuzz_device.h"

namespace stillmap::handoff {
namespace {

using checkpoint::memory_layout;
using bytes_view = std::span<const std::byte>;

constexpr std::size_t granularity = std::size_t{2} << 20;
constexpr std::size_t largest_body = std::size_t{1} << 16;

template <class T>
bool refused_well(const result<T> &r) {
  return r.error().is(errc::corrupt) && r.error().reason[0] != '\0';
}

bool same(const memory_layout &a, const memory_layout &b) {
  const auto all = [](const auto &x, const auto &y, auto alike) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), alike);
  };
  using l = memory_layout;
  return all(a.blocks, b.blocks,
             [](const l::block &x, const l::block &y) {
               return x.range == y.range && x.tag == y.tag;
             }) &&
         all(a.pages, b.pages,
             [](const l::page &x, const l::page &y) {
               return x.bytes == y.bytes && x.properties == y.properties;
             }) &&
         a.access == b.access && all(a.places, b.places, [](const l::place &x, const l::place &y) {
           return x.at == y.at && x.page == y.page && x.access == y.access;
         });
}

std::string fuzz_hello(bytes_view from) {
  const auto h = decode_hello(from);
  if (!h) return refused_well(h) ? "" : "a hello was refused without a reason";
  const auto again = encode(*h);
  return std::equal(again.begin(), again.end(), from.begin(), from.end())
             ? ""
             : "a hello changed when encoded again";
}

// What restoring relies on, checked independently.
std::string restorable(const memory_layout &l) {
  std::vector<bool> used(l.pages.size());
  device_address end;
  for (const auto &p : l.places) {
    if (p.page >= l.pages.size() || p.access >= l.access.size()) return "an index is out of range";
    const virtual_range r{p.at, l.pages[p.page].bytes};
    if (r.begin < end || r.bytes == 0 || r.end() < r.begin) return "places overlap";
    end = r.end();
    std::size_t inside = 0;
    for (const auto &b : l.blocks) inside += b.range.contains(r) ? 1 : 0;
    if (inside != 1) return "a place is not in one block";
    used[p.page] = true;
  }
  for (const bool u : used) {
    if (!u) return "a page is used nowhere";
  }
  return "";
}

std::string fuzz_layout(bytes_view from) {
  const auto l = checkpoint::decode_layout(from);
  if (!l) return refused_well(l) ? "" : "a layout was refused without a reason";
  if (l->blocks.size() + l->pages.size() + l->places.size() > from.size()) {
    return "more came out of a layout than was in it";
  }
  const auto back = checkpoint::decode_layout(encode(*l));
  if (!back || !same(*l, *back)) return "a layout does not survive being written";
  const status s = check(*l, granularity);
  if (!s) return refused_well(s) ? "" : "a layout was refused without a reason";
  if (const std::string wrong = restorable(*l); !wrong.empty()) return "accepted though " + wrong;
  [[maybe_unused]] const std::size_t sums = l->bytes() + l->tagged("a").size();
  return "";
}

std::string fuzz_peer_error(bytes_view from) {
  const error e = checkpoint::decode_peer_error(from);
  return e.code && e.reason[0] != '\0' ? "" : "a peer error is no error";
}

std::string fuzz_stream(bytes_view from) {
  int pair[2];
  if (from.size() > (std::size_t{64} << 10) ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return "";
  }
  auto here = connection::adopt(owned_fd(pair[0]));
  {
    const owned_fd there(pair[1]);
    if (!from.empty() && ::send(pair[1], from.data(), from.size(), MSG_DONTWAIT) < 0) return "";
  }
  if (!here) return "a socket was not adopted";
  std::size_t read = 0;
  for (;;) {
    const auto m = here->receive(largest_body, std::chrono::milliseconds(1000), {});
    if (!m) return m.error().reason[0] != '\0' ? "" : "a message was refused without a reason";
    if (!m->fds.empty()) return "descriptors came out of nothing";
    read += m->body.size() + 1;
    if (m->body.size() > largest_body || read > from.size()) return "more came than was sent";
  }
}

std::vector<std::byte> number(std::uint64_t n, int bytes) {
  std::vector<std::byte> out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(n >> (8 * i)));
  return out;
}

memory_layout sample_layout(unsigned kind) {
  const std::uint64_t at = 0x2000'0000'0000;
  memory_layout l;
  l.blocks = {{{device_address(at), 8 * granularity}, "weights", 0}};
  if (kind != 0) l.blocks.push_back({{device_address(at + 64 * granularity), granularity}, "", 0});
  physical_properties p;
  p.location = {location_kind::device, memory_layout::own_device};
  p.exportable = kind % 2 == 0 ? handle_type::posix_fd : handle_type::none;
  p.rdma = kind == 3;
  l.pages = {{granularity, p}, {2 * granularity, p}};
  if (kind == 2) l.pages[0].properties.location = on_host_numa(1);
  l.access = {{{{location_kind::device, memory_layout::own_device}, access_mode::read_write}}};
  if (kind == 3) l.access.push_back({{on_host_numa(0), access_mode::read}});
  l.places = {{device_address(at), 0, 0}, {device_address(at + granularity), 1, 0}};
  if (kind == 3) l.places.push_back({device_address(at + 5 * granularity), 0, 1});
  return l;
}

// The first `steps` messages of a sender, with the word offered or not.
std::vector<std::byte> sender_session(unsigned steps, bool offers) {
  peer_script s(role::sender);
  const auto next = [&] { return steps != 0 && steps-- != 0; };
  if (next()) s.message(kind::hello, attached::nothing, encode(hello{role::sender}));
  if (next()) {
    s.message(kind::layout, attached::word, encode(testing::small::layout(granularity)));
  }
  if (next()) s.message(kind::pages, attached::page);
  if (next()) s.message(kind::pages, attached::large_page);
  if (next()) s.message(kind::offer, attached::nothing);
  if (offers) s.word(0, static_cast<std::uint8_t>(ownership::offered));
  return s.bytes();
}

std::vector<std::byte> receiver_session(unsigned steps, bool commits) {
  peer_script s(role::receiver);
  const auto next = [&] { return steps != 0 && steps-- != 0; };
  if (next()) s.message(kind::hello, attached::nothing, encode(hello{role::receiver}));
  if (next()) s.message(kind::ready, attached::null);
  if (next()) s.message(kind::committed, attached::nothing);
  if (commits) {
    s.word(static_cast<int>(step::offer_sent), static_cast<std::uint8_t>(ownership::receiver));
  }
  return s.bytes();
}

std::string fuzz_wire(const std::uint8_t *data, std::size_t size) {
  if (size == 0) return "";
  const bytes_view rest(reinterpret_cast<const std::byte *>(data + 1), size - 1);
  switch (static_cast<fuzz_mode>(data[0] % static_cast<unsigned>(fuzz_mode::count))) {
    case fuzz_mode::hello:
      return fuzz_hello(rest);
    case fuzz_mode::layout:
      return fuzz_layout(rest);
    case fuzz_mode::peer_error:
      return fuzz_peer_error(rest);
    default:
      return fuzz_stream(rest);
  }
}

}  // namespace

std::string fuzz_handoff(const device &d, const std::uint8_t *data, std::size_t size) {
  const auto modes = static_cast<unsigned>(fuzz_mode::count);
  if (size == 0 || static_cast<fuzz_mode>(data[0] % modes) != fuzz_mode::session) {
    return fuzz_wire(data, size);
  }
  return run_hostile_peer(d, std::as_bytes(std::span(data + 1, size - 1))).wrong;
}

std::vector<stillmap::testing::fuzz_input> fuzz_corpus() {
  std::vector<stillmap::testing::fuzz_input> inputs;
  std::vector<std::byte> all;  // as the messages of one conversation
  const auto add = [&](fuzz_mode mode, std::uint16_t k, const std::vector<std::byte> &body) {
    inputs.push_back(stillmap::testing::fuzz_input_of(static_cast<std::uint8_t>(mode), body));
    if (mode == fuzz_mode::stream || mode == fuzz_mode::session) return;
    // magic, version, kind, bytes, descriptors: connection.cpp's header
    const auto put = [&](std::uint64_t n, int bytes) {
      for (const std::byte b : number(n, bytes)) all.push_back(b);
    };
    for (const char c : {'S', 'M', 'H', 'O'}) all.push_back(static_cast<std::byte>(c));
    put(connection::version, 2);
    put(k, 2);
    put(body.size(), 4);
    put(0, 4);
    all.insert(all.end(), body.begin(), body.end());
  };
  for (const role as : {role::sender, role::receiver}) {
    add(fuzz_mode::hello, 1, encode(hello{as, {1, 2, 3}, granularity}));
  }
  for (unsigned i = 0; i < 4; ++i) add(fuzz_mode::layout, 2, encode(sample_layout(i)));
  add(fuzz_mode::peer_error, 7,
      checkpoint::encode(error{make_error_code(errc::busy), "", "", 17, 0}));
  add(fuzz_mode::stream, 0, all);
  for (const bool decided : {false, true}) {
    for (unsigned steps = 1; steps <= 5; ++steps) {
      add(fuzz_mode::session, 0, sender_session(steps, decided));
      if (steps <= 3) add(fuzz_mode::session, 0, receiver_session(steps, decided));
    }
  }
  return inputs;
}

}  // namespace stillmap::handoff

namespace {

std::string fuzz_handoff_alone(const std::uint8_t *data, std::size_t size) {
  return stillmap::handoff::fuzz_handoff(stillmap::testing::fuzz_device(), data, size);
}

}  // namespace

STILLMAP_FUZZ_ENTRY("wire", fuzz_handoff_alone, stillmap::handoff::fuzz_corpus)
