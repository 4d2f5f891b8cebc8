#include "stillmap/checkpoint/migration/internal/source_connections.h"

#include <algorithm>
#include <atomic>
#include <string_view>
#include <thread>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/base/parallel_for.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

// Room before the contents for their header, so that one call sends both.
constexpr std::size_t header_room = 64;
static_assert(header_room >= header::bytes);

// For each step of opening the first data channel where the destination announces: the session there ends if the source
// says nothing for longer than its resolve_timeout.
constexpr std::chrono::milliseconds max_announced_wait{10'000};

// An address of all interfaces is the one at which the destination was reached.
std::string reachable(const std::string &announced, const std::string &reached) {
  for (const std::string_view any : {"0.0.0.0:", "[::]:"}) {
    if (!announced.starts_with(any)) continue;
    return reached.substr(0, reached.rfind(':')) + announced.substr(any.size() - 1);
  }
  return announced;
}

status commit_on(channel &to, const outcome_query &q, std::chrono::milliseconds timeout) {
  STILLMAP_RETURN_IF_ERROR(send(to, kind::commit, encode(q), timeout));
  STILLMAP_RETURN_IF_ERROR(receive(to, kind::owner, 0, timeout));
  return {};
}

}  // namespace

void rate_limiter::acquire(std::uint64_t bytes) {
  if (rate_ != 0) std::this_thread::sleep_until(reserve(bytes, clock::now()));
}

rate_limiter::clock::time_point rate_limiter::reserve(std::uint64_t bytes, clock::time_point now) {
  if (rate_ == 0) return now;
  const lock_guard lock(mutex_);
  next_ = std::max(next_, now - burst);
  const clock::time_point mine = next_;
  next_ += std::chrono::nanoseconds(
      static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / static_cast<double>(rate_)));
  return mine;
}

channel &source_connections::control() {
  const lock_guard lock(shutdown_mutex_);
  return *control_;
}

channel &source_connections::data(std::size_t i) {
  const lock_guard lock(shutdown_mutex_);
  return *data_[i];
}

// What one thread sends with.
struct source_connections::lane {
  channel *to;
  std::size_t first_stream;  // of two
  std::byte *buffers[2];     // each for a header and a chunk
};

// shutdown() ends what the thread waits for there.
void source_connections::set_connecting(channel *now) {
  const lock_guard lock(shutdown_mutex_);
  connecting_ = now;
  if (shut_down_ && now != nullptr) now->shutdown();
}

result<std::unique_ptr<channel>> source_connections::connect(transport &to,
                                                             std::chrono::milliseconds timeout) {
  STILLMAP_ASSIGN_OR_RETURN(auto c, to.connect(timeout));
  set_connecting(c.get());
  const status s = with_host_memory([&] { return c->handshake(timeout); });
  set_connecting(nullptr);
  STILLMAP_RETURN_IF_ERROR(s);
  return c;
}

status source_connections::open(transport &to, const hello &h) {
  STILLMAP_ASSIGN_OR_RETURN(auto c, connect(to, options_.timeout));
  {
    const lock_guard lock(shutdown_mutex_);
    control_ = std::move(c);
    if (shut_down_) control_->shutdown();
  }
  peer_ = control().peer();
  buffer_bytes_ = header_room + h.chunk_bytes;
  STILLMAP_RETURN_IF_ERROR(send(control(), kind::hello, encode(h), options_.timeout));
  STILLMAP_ASSIGN_OR_RETURN(const message m,
                            receive(control(), kind::welcome, max_welcome_bytes, options_.timeout));
  STILLMAP_ASSIGN_OR_RETURN(welcome_message welcome, decode_welcome(m.body));
  session_ = welcome.session;
  endpoint_ = std::move(welcome.data);
  return {};
}

status source_connections::open_channel(transport &to, const peer_identity *peer,
                                        std::chrono::milliseconds timeout) {
  const std::size_t i = data_channel_count();
  STILLMAP_ASSIGN_OR_RETURN(auto c, connect(to, timeout));
  if (peer != nullptr && c->peer().fingerprint != peer->fingerprint) {
    return make_error(errc::not_supported,
                      "a data channel reached another peer than the control channel", i);
  }
  set_connecting(c.get());
  status joined = with_host_memory([&]() -> status {
    STILLMAP_RETURN_IF_ERROR(send(*c, kind::join, encode(session_), timeout, i));
    STILLMAP_RETURN_IF_ERROR(receive(*c, kind::welcome, 0, timeout));
    const lock_guard lock(shutdown_mutex_);
    data_.reserve(data_.size() + 1);
    return {};
  });
  set_connecting(nullptr);
  STILLMAP_RETURN_IF_ERROR(joined);
  const lock_guard lock(shutdown_mutex_);
  data_.push_back(std::move(c));
  if (shut_down_) data_.back()->shutdown();
  return {};
}

std::size_t source_connections::data_channel_count() {
  const lock_guard lock(shutdown_mutex_);
  return data_.size();
}

status source_connections::open_announced() {
  const auto not_used = [](const char *why, const std::string &subject) {
    return tl::unexpected(make_error(errc::not_supported, why).value().about(subject));
  };
  data_connector *const by = options_.data_connector.get();
  const std::string there = endpoint_.transport + ' ' + endpoint_.address;
  if (by == nullptr) {
    return not_used("the source has no connector of this transport, or was told to use TLS only",
                    there);
  }
  const std::string here = by->transport_name();
  if (endpoint_.transport.empty()) {
    return not_used("only the source has this transport for data channels", here);
  }
  if (endpoint_.transport != here) {
    return not_used("the destination has another transport for data channels than the source",
                    there);
  }
  STILLMAP_ASSIGN_OR_RETURN(announced_,
                            by->create_transport(reachable(endpoint_.address, peer_.address)));
  data_transport_ = here;
  // Only the session's id says who joins there.
  status opened =
      open_channel(*announced_, nullptr, std::min(options_.timeout, max_announced_wait));
  if (!opened) data_transport_.clear();
  return opened;
}

status source_connections::open_channels(transport &to) {
  if (options_.data_connector || !endpoint_.transport.empty()) {
    if (const status s = with_host_memory([&] { return open_announced(); }); !s) {
      data_fallback_ = s.error();
    }
  }
  const bool own = data_transport_.empty();
  while (data_channel_count() < options_.channels) {
    STILLMAP_RETURN_IF_ERROR(
        open_channel(own ? to : *announced_, own ? &peer_ : nullptr, options_.timeout));
  }
  STILLMAP_ASSIGN_OR_RETURN(copier_,
                            checkpoint::batch_copier::create(device_, 2 * options_.channels));
  STILLMAP_ASSIGN_OR_RETURN(
      buffers_, checkpoint::host_memory::create(device_, 2 * options_.channels * buffer_bytes_));
  return {};
}

status source_connections::prepare(const layout_message &l) {
  const std::vector<std::byte> body = encode(l);
  if (body.size() > checkpoint::largest_layout) {
    return make_error(errc::not_supported, "the layout is too large for one message", body.size(),
                      checkpoint::largest_layout, error_unit::bytes);
  }
  STILLMAP_RETURN_IF_ERROR(send(control(), kind::layout, body, options_.timeout));
  STILLMAP_RETURN_IF_ERROR(receive(control(), kind::prepared, 0, options_.timeout));
  return {};
}

result<std::size_t> source_connections::copy(source_memory &from, copy_round &round,
                                             const std::function<status()> &find,
                                             std::uint64_t number, const on_chunk &sent) {
  const std::size_t channels = options_.channels;
  std::atomic<std::size_t> next{0};
  struct {
    stillmap::mutex mutex;
    status first STILLMAP_GUARDED_BY(mutex);
  } failing;
  const auto send_all = [&](std::size_t i) -> status {
    std::byte *const buffers = buffers_.data() + 2 * i * buffer_bytes_;
    lane l{&data(i), 2 * i, {buffers, buffers + buffer_bytes_}};
    STILLMAP_RETURN_IF_ERROR(send_chunks(l, from, round, sent));
    return send(*l.to, kind::round_end, {}, options_.timeout, number);
  };
  checkpoint::parallel_for(static_cast<unsigned>(channels) + 1, [&]() noexcept {
    // With fewer threads than tasks, one thread runs several. `find` is first: it waits for no
    // other.
    for (std::size_t i = next++; i <= channels; i = next++) {
      const status s = with_host_memory([&] { return i == 0 ? find() : send_all(i - 1); });
      if (s) continue;
      round.give_up();
      const lock_guard lock(failing.mutex);
      if (failing.first) failing.first = s;
    }
  });
  status failure;
  {
    const lock_guard lock(failing.mutex);
    failure = std::move(failing.first);
  }
  // The peer knows nothing about a failure of the driver.
  if (!failure && failure.error().code.category() == cuda_category()) {
    return tl::unexpected(failure.error());
  }
  const auto timeout =
      failure ? options_.timeout : std::min(options_.timeout, std::chrono::milliseconds(500));
  const auto m = receive(control(), kind::round_received, max_table_bytes, timeout);
  // If the peer closed the connection, it may have said why.
  if (!failure && (m || std::string_view(m.error().reason) != checkpoint::peer_refused)) {
    return tl::unexpected(failure.error());
  }
  if (!m) return tl::unexpected(m.error());
  STILLMAP_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> damaged, decode_numbers(m->body));
  if (m->head.number != number) {
    return make_error(errc::corrupt, "the result of another round arrived", m->head.number, number);
  }
  if (damaged.empty()) return std::size_t{0};
  for (source_memory::chunk &c : from.chunks()) {
    if (std::find(damaged.begin(), damaged.end(), c.number) != damaged.end()) c.known = false;
  }
  return damaged.size();
}

// Uses two buffers: one is filled from the device while the other is sent. Whatever fails, no read
// stays begun: a thread that unmaps would wait for it.
status source_connections::send_chunks(lane &l, source_memory &from, copy_round &round,
                                       const on_chunk &sent) {
  std::optional<std::size_t> in_buffer[2];
  status s;
  const auto finish_copy = [&](std::size_t b) {
    const virtual_range at = from.chunks()[*in_buffer[b]].at;
    if (status done = copier_->wait(l.first_stream + b); s) s = done;
    from.end_read(at);
  };
  for (std::size_t b = 0;; b ^= 1) {
    const std::size_t other = b ^ 1;
    const bool other_full = in_buffer[other].has_value();
    // The next chunk that is still mapped. Does not wait for one while the other buffer can be
    // sent.
    while (const auto next = s ? round.take(!other_full) : std::nullopt) {
      source_memory::chunk &c = from.chunks()[*next];
      c.known = false;
      const auto begun = from.begin_read(c.at);
      if (!begun) s = tl::unexpected(begun.error());
      if (!begun || !*begun) continue;
      in_buffer[b] = next;
      s = copier_->start(checkpoint::direction::to_host, c.at, l.buffers[b] + header_room,
                         l.first_stream + b);
      break;
    }
    if (other_full) {
      finish_copy(other);
      if (s) {
        s = with_host_memory([&] {
          return send_chunk(l, other, from.chunks()[*in_buffer[other]], from.key(), sent);
        });
      }
      in_buffer[other].reset();
    }
    if (!in_buffer[b] && (!s || !other_full)) return s;
    if (!s) {
      finish_copy(b);
      return s;
    }
  }
}

status source_connections::send_chunk(lane &l, std::size_t buffer, source_memory::chunk &c,
                                      const image::digest_key &key, const on_chunk &sent) {
  std::byte *const contents = l.buffers[buffer] + header_room;
  std::byte *const head = contents - header::bytes;
  const std::span<const std::byte> bytes(contents, c.at.bytes);
  const bool zeros = image::all_zero(bytes);
  STILLMAP_ASSIGN_OR_RETURN(c.sent, zeros ? image::digest_of_zeros(key, bytes.size())
                                          : image::digest_of_contents(key, bytes));
  c.known = true;
  const std::uint64_t body = zeros ? 0 : bytes.size();
  limiter_.acquire(header::bytes + body);
  encode(header{zeros ? kind::zeros : kind::chunk, body, c.number,
                l.to->encrypted() ? c.sent : image::digest()},
         std::span<std::byte, header::bytes>(head, header::bytes));
  STILLMAP_RETURN_IF_ERROR(l.to->send({head, header::bytes + body}, options_.timeout));
  const lock_guard lock(on_chunk_mutex_);
  sent(bytes.size(), zeros);
  return {};
}

result<std::vector<std::uint64_t>> source_connections::seal(const source_memory &from) {
  std::vector<image::digest> all;
  for (const source_memory::chunk &c : from.chunks()) all.push_back(c.sent);
  STILLMAP_RETURN_IF_ERROR(send(control(), kind::seal, encode(all), options_.timeout));
  STILLMAP_ASSIGN_OR_RETURN(const message m,
                            receive(control(), kind::verified, max_table_bytes, options_.timeout));
  return decode_numbers(m.body);
}

status source_connections::commit(const outcome_query &q) noexcept {
  return with_host_memory([&] { return commit_on(control(), q, options_.timeout); });
}

bool source_connections::is_alive() noexcept {
  std::byte none[1];
  const status s =
      with_host_memory([&] { return control().receive(none, std::chrono::milliseconds(1)); });
  return !s && s.error().is(errc::busy);
}

void source_connections::discard() noexcept {
  const lock_guard lock(shutdown_mutex_);
  if (control_ == nullptr || shut_down_) return;
  // If it cannot be sent, the destination finds the connection closed, which means the same.
  (void)with_host_memory([&]() STILLMAP_REQUIRES(shutdown_mutex_) {
    return send(*control_, kind::discard, {}, std::chrono::milliseconds(100));
  });
}

void source_connections::shutdown() noexcept {
  const lock_guard lock(shutdown_mutex_);
  shut_down_ = true;
  if (connecting_ != nullptr) connecting_->shutdown();
  if (control_ != nullptr) control_->shutdown();
  for (const auto &c : data_) c->shutdown();
}

result<outcome> ask_outcome(transport &to, const outcome_query &q, std::string_view certificate,
                            std::chrono::milliseconds timeout) {
  STILLMAP_ASSIGN_OR_RETURN(const auto c, to.connect(timeout));
  STILLMAP_RETURN_IF_ERROR(c->handshake(timeout));
  if (!certificate.empty() && c->peer().fingerprint != certificate) {
    return make_error(errc::not_supported,
                      "this is not the machine that the task was sent to: it has another "
                      "certificate. If the certificate was replaced since, say so");
  }
  STILLMAP_RETURN_IF_ERROR(send(*c, kind::query, encode(q), timeout));
  STILLMAP_ASSIGN_OR_RETURN(const message m, receive(*c, kind::query_result, 0, timeout));
  switch (static_cast<outcome>(m.head.number)) {
    case outcome::owner:
    case outcome::refused:
      return static_cast<outcome>(m.head.number);
    case outcome::awaiting_commit:
      STILLMAP_RETURN_IF_ERROR(commit_on(*c, q, timeout));
      return outcome::owner;
  }
  return make_error(errc::corrupt, "the destination replied with an unknown outcome",
                    m.head.number);
}

}  // namespace stillmap::migration
