#include "stillmap/checkpoint/migration/internal/link.h"

#include <algorithm>
#include <atomic>
#include <string_view>
#include <thread>

#include "stillmap/checkpoint/image/internal/parallel_for.h"

namespace stillmap::migration {
namespace {

constexpr const char *op = "migration::send";
// In front of the contents, so that both go in one piece.
constexpr std::size_t head_room = 64;
// What a sender was kept from may go at once afterwards, as what waits in a socket's buffer does.
constexpr std::chrono::milliseconds catches_up{10};
static_assert(head_room >= header::bytes);

}  // namespace

void pace::take(std::uint64_t bytes) {
  if (rate_ == 0) return;
  std::chrono::steady_clock::time_point mine;
  {
    const std::lock_guard lock(mutex_);
    free_ = std::max(free_, std::chrono::steady_clock::now() - catches_up);
    mine = free_;
    free_ += std::chrono::nanoseconds(
        static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / static_cast<double>(rate_)));
  }
  std::this_thread::sleep_until(mine);
}

// What one thread copies with.
struct link::lane {
  channel *to;
  std::size_t first_stream;  // and the next one
  std::byte *room[2];        // for a header and a chunk each
};

result<std::unique_ptr<channel>> link::open(transport &to) {
  auto c = to.connect(how_.wait);
  if (!c) return c;
  const auto opening = [&](channel *now) {
    const std::lock_guard lock(cutting_);
    opening_ = now;
    if (cut_ && now != nullptr) now->cut();
  };
  opening(c->get());
  const status s = (*c)->open(how_.wait);
  opening(nullptr);
  if (!s) return tl::unexpected(s.error());
  return c;
}

status link::greet(transport &to, const hello &h) {
  auto c = open(to);
  if (!c) return tl::unexpected(c.error());
  {
    const std::lock_guard lock(cutting_);
    control_ = std::move(*c);
    if (cut_) control_->cut();
  }
  who_ = control_->who();
  chunk_room_ = head_room + h.chunk_bytes;
  if (status s = migration::send(*control_, kind::hello, encode(h), how_.wait); !s) return s;
  const auto m = receive(*control_, kind::welcome, 16, how_.wait, op);
  if (!m) return tl::unexpected(m.error());
  const auto session = decode_session(m->body);
  if (!session) return tl::unexpected(session.error());
  session_ = *session;
  return {};
}

status link::join(transport &to) {
  for (std::size_t i = 0; i < how_.channels; ++i) {
    auto c = open(to);
    if (!c) return tl::unexpected(c.error());
    if ((*c)->who().fingerprint != who_.fingerprint) {
      return make_error(errc::not_supported, op, "somebody else answers than before", i);
    }
    if (status s = migration::send(**c, kind::join, encode(session_), how_.wait, i); !s) return s;
    const auto m = receive(**c, kind::welcome, 0, how_.wait, op);
    if (!m) return tl::unexpected(m.error());
    const std::lock_guard lock(cutting_);
    data_.push_back(std::move(*c));
    if (cut_) data_.back()->cut();
  }
  auto by = checkpoint::transfer::create(device_, 2 * how_.channels);
  if (!by) return tl::unexpected(by.error());
  by_.emplace(std::move(*by));
  auto buffers = checkpoint::host_memory::create(device_, 2 * how_.channels * chunk_room_);
  if (!buffers) return tl::unexpected(buffers.error());
  buffers_ = std::move(*buffers);
  return {};
}

status link::prepare(const layout_message &l) {
  const std::vector<std::byte> body = encode(l);
  if (body.size() > checkpoint::largest_layout) {
    return make_error(errc::not_supported, op, "the layout is larger than a message may be",
                  body.size(), checkpoint::largest_layout);
  }
  if (status s = migration::send(*control_, kind::layout, body, how_.wait); !s) return s;
  const auto m = receive(*control_, kind::prepared, 0, how_.wait, op);
  if (!m) return tl::unexpected(m.error());
  return {};
}

result<std::size_t> link::copy(outgoing &from, round &which, const std::function<status()> &finding,
                               std::uint64_t number, const told &tell) {
  std::atomic<std::size_t> next{0};
  std::mutex failing;
  status outcome;
  const auto go = [&](std::size_t i) {
    std::byte *const room = buffers_.data() + 2 * i * chunk_room_;
    lane l{data_[i].get(), 2 * i, {room, room + chunk_room_}};
    if (status s = carry(l, from, which, tell); !s) return s;
    return migration::send(*l.to, kind::mark, {}, how_.wait, number);
  };
  image::parallel_for(static_cast<unsigned>(data_.size()) + 1, [&] {
    // Where there are fewer threads, one after the other: finding first, which waits for nobody.
    for (std::size_t i = next++; i <= data_.size(); i = next++) {
      const status s = i == 0 ? finding() : go(i - 1);
      if (s) continue;
      which.give_up();  // the others need not go on
      const std::lock_guard lock(failing);
      if (outcome) outcome = s;
    }
  });
  // It has nothing to do with the other side.
  if (!outcome && outcome.error().code.category() == cuda_category()) {
    return tl::unexpected(outcome.error());
  }
  const auto m = receive(*control_, kind::landed, largest_table,
                         outcome ? how_.wait : std::min(how_.wait, patience(500)), op);
  // Where the other side cut the link, it may have said why.
  if (!outcome && (m || std::string_view(m.error().reason) != checkpoint::refused_there)) {
    return tl::unexpected(outcome.error());
  }
  if (!m) return tl::unexpected(m.error());
  const auto bad = decode_numbers(m->body);
  if (!bad) return tl::unexpected(bad.error());
  if (m->head.number != number) {
    return make_error(errc::corrupt, op, "the other side speaks of another round", m->head.number,
                  number);
  }
  if (bad->empty()) return std::size_t{0};
  for (outgoing::chunk &c : from.chunks()) {
    if (std::find(bad->begin(), bad->end(), c.number) != bad->end()) c.known = false;
  }
  return bad->size();
}

// Two buffers: one is filled while the other goes.
status link::carry(lane &l, outgoing &from, round &which, const told &tell) {
  std::optional<std::size_t> filling[2];
  status s;
  const auto filled = [&](std::size_t b) {
    const virtual_range at = from.chunks()[*filling[b]].at;
    if (status done = by_->wait(l.first_stream + b); s) s = done;
    from.leave(at);
  };
  for (std::size_t b = 0;; b ^= 1) {
    const std::size_t other = b ^ 1;
    const bool full = filling[other].has_value();  // and does not wait until more is found
    // The next one that is still there.
    while (const auto mine = s ? which.take(!full) : std::nullopt) {
      outgoing::chunk &c = from.chunks()[*mine];
      c.known = false;
      if (!from.enter(c.at)) continue;
      filling[b] = mine;
      s = by_->start(checkpoint::direction::to_host, c.at, l.room[b] + head_room,
                     l.first_stream + b);
      break;
    }
    if (full) {
      filled(other);
      if (s) s = send_chunk(l, other, from.chunks()[*filling[other]], tell);
      filling[other].reset();
    }
    if (!filling[b] && (!s || !full)) return s;
    if (!s) {  // nothing may be under way afterwards
      filled(b);
      return s;
    }
  }
}

status link::send_chunk(lane &l, std::size_t buffer, outgoing::chunk &c, const told &tell) {
  std::byte *const contents = l.room[buffer] + head_room, *const head = contents - header::bytes;
  const std::span<const std::byte> bytes(contents, c.at.bytes);
  const bool zeros = image::all_zero(bytes);
  c.sent = zeros ? image::digest_of_zeros(bytes.size()) : image::digest_of_contents(bytes);
  c.known = true;
  const std::uint64_t body = zeros ? 0 : bytes.size();
  pace_.take(header::bytes + body);
  encode(header{zeros ? kind::zeros : kind::chunk, body, c.number, c.sent},
         std::span<std::byte, header::bytes>(head, header::bytes));
  if (status s = l.to->send({head, header::bytes + body}, how_.wait); !s) return s;
  const std::lock_guard lock(telling_);
  tell(bytes.size(), zeros);
  return {};
}

result<std::vector<std::uint64_t>> link::seal(const outgoing &from) {
  std::vector<image::digest> all;
  for (const outgoing::chunk &c : from.chunks()) all.push_back(c.sent);
  if (status s = migration::send(*control_, kind::seal, encode(all), how_.wait); !s) {
    return tl::unexpected(s.error());
  }
  const auto m = receive(*control_, kind::verified, largest_table, how_.wait, op);
  if (!m) return tl::unexpected(m.error());
  return decode_numbers(m->body);
}

namespace {

status commit_on(channel &to, const question &q, patience wait) {
  if (status s = send(to, kind::commit, encode(q), wait); !s) return s;
  const auto m = receive(to, kind::owner, 0, wait, op);
  if (!m) return tl::unexpected(m.error());
  return {};
}

}  // namespace

status link::commit(const question &q) {
  return commit_on(*control_, q, how_.wait);
}

void link::discard() {
  const std::lock_guard lock(cutting_);
  // Where it does not get through, the destination finds the link cut.
  if (control_ != nullptr && !cut_) {
    (void)migration::send(*control_, kind::discard, {}, patience(100));
  }
}

void link::cut() {
  const std::lock_guard lock(cutting_);
  cut_ = true;
  if (opening_ != nullptr) opening_->cut();
  if (control_ != nullptr) control_->cut();
  for (const auto &c : data_) c->cut();
}

result<standing> ask(transport &to, const question &q, patience wait) {
  auto c = to.connect(wait);
  if (!c) return tl::unexpected(c.error());
  if (status s = (*c)->open(wait); !s) return tl::unexpected(s.error());
  if (status s = send(**c, kind::ask, encode(q), wait); !s) return tl::unexpected(s.error());
  const auto m = receive(**c, kind::answer, 0, wait, op);
  if (!m) return tl::unexpected(m.error());
  switch (static_cast<standing>(m->head.number)) {
    case standing::owns:
    case standing::never:
      return static_cast<standing>(m->head.number);
    case standing::waiting:
      if (status s = commit_on(**c, q, wait); !s) return tl::unexpected(s.error());
      return standing::owns;
  }
  return make_error(errc::corrupt, op, "there is no such answer", m->head.number);
}

}  // namespace stillmap::migration
