#include "stillmap/checkpoint/ucx/internal/channel.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "stillmap/checkpoint/base/tcp_socket.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::ucx {
namespace {

// What either end says first, on the socket and then over UCX.
constexpr std::array<char, 16> greeting{'s', 't', 'i', 'l', 'l', 'm', 'a', 'p',
                                        '-', 'u', 'c', 'x', 0,   0,   0,   1};
constexpr std::size_t magic_bytes = 12;  // then the version
constexpr std::size_t max_worker_address = std::size_t{16} << 10;
// One call to UCX, so that a timeout is of this much.
constexpr std::size_t max_piece_bytes = std::size_t{4} << 20;
// To disconnect in the destructor, where nobody waits for it.
constexpr std::chrono::milliseconds disconnect_timeout{1000};
// Progress without an event before a thread sleeps: an answer is often that near.
constexpr int spins_before_sleep = 200;
// What a peer sent last may be behind the end of its socket.
constexpr std::chrono::milliseconds grace{100};

std::span<const std::byte> our_greeting() {
  return std::as_bytes(std::span(greeting));
}

status check_greeting(std::span<const std::byte, greeting.size()> theirs) {
  const auto ours = our_greeting();
  if (!std::equal(ours.begin(), ours.begin() + magic_bytes, theirs.begin())) {
    return make_error(errc::corrupt, "the peer does not speak Stillmap's protocol over UCX");
  }
  if (theirs.back() != ours.back()) {
    return make_error(errc::not_supported, "the peer has another version of the protocol over UCX",
                      std::to_integer<std::uint64_t>(theirs.back()),
                      std::to_integer<std::uint64_t>(ours.back()));
  }
  return {};
}

}  // namespace

result<std::unique_ptr<channel>> channel::create(std::shared_ptr<const owned_context> context,
                                                 fork_closed_fd socket, bool accepting,
                                                 std::string address) {
  STILLMAP_ASSIGN_OR_RETURN(wake_up send, wake_up::create());
  STILLMAP_ASSIGN_OR_RETURN(wake_up receive, wake_up::create());
  return std::unique_ptr<channel>(new channel(std::move(context), std::move(socket), accepting,
                                              std::move(address), std::move(send),
                                              std::move(receive)));
}

channel::~channel() {
  const lock_guard lock(mutex_);
  break_off();
}

bool channel::handshake_begun() const noexcept {
  int unread = 0;
  return handshake_begun_ || (::ioctl(socket_.get(), FIONREAD, &unread) == 0 && unread > 0);
}

status channel::handshake(std::chrono::milliseconds timeout) {
  return with_host_memory("migration::channel::handshake", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(const auto to, exchange_addresses(clock::now() + timeout));
    STILLMAP_RETURN_IF_ERROR(create_endpoint(to));
    // Whether the workers reach each other is known once something has passed.
    std::array<std::byte, greeting.size()> theirs;
    if (!accepting_) STILLMAP_RETURN_IF_ERROR(send(our_greeting(), timeout));
    STILLMAP_RETURN_IF_ERROR(receive(theirs, timeout));
    if (accepting_) STILLMAP_RETURN_IF_ERROR(send(our_greeting(), timeout));
    return check_greeting(theirs);
  });
}

// A worker costs memory and descriptors: the accepting end makes one for who knows the protocol.
result<std::vector<std::byte>> channel::exchange_addresses(clock::time_point until) {
  std::array<std::byte, greeting.size()> theirs;
  if (!accepting_)
    STILLMAP_RETURN_IF_ERROR(checkpoint::write_all(socket_.get(), our_greeting(), until));
  STILLMAP_RETURN_IF_ERROR(checkpoint::read_all(socket_.get(), theirs, until));
  handshake_begun_ = true;
  STILLMAP_RETURN_IF_ERROR(check_greeting(theirs));
  if (accepting_)
    STILLMAP_RETURN_IF_ERROR(checkpoint::write_all(socket_.get(), our_greeting(), until));

  std::vector<std::byte> address;
  {
    const lock_guard lock(mutex_);
    STILLMAP_RETURN_IF_ERROR(usable_so_far());
    STILLMAP_ASSIGN_OR_RETURN(worker made, worker::create(context_));
    STILLMAP_ASSIGN_OR_RETURN(address, made.address());
    efd_ = made.efd();
    worker_.emplace(std::move(made));
  }
  std::uint32_t bytes = htonl(static_cast<std::uint32_t>(address.size()));
  STILLMAP_RETURN_IF_ERROR(
      checkpoint::write_all(socket_.get(), std::as_bytes(std::span(&bytes, 1)), until));
  STILLMAP_RETURN_IF_ERROR(checkpoint::write_all(socket_.get(), address, until));
  STILLMAP_RETURN_IF_ERROR(
      checkpoint::read_all(socket_.get(), std::as_writable_bytes(std::span(&bytes, 1)), until));
  bytes = ntohl(bytes);
  if (bytes == 0 || bytes > max_worker_address) {
    return make_error(errc::corrupt, "the address of the peer's UCX worker has a wrong size", bytes,
                      max_worker_address, error_unit::bytes);
  }
  address.resize(bytes);
  STILLMAP_RETURN_IF_ERROR(checkpoint::read_all(socket_.get(), address, until));
  return address;
}

status channel::create_endpoint(const std::vector<std::byte> &to) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t *>(to.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // a peer that is gone is an error
  params.err_handler.cb = &channel::on_error;
  params.err_handler.arg = this;
  const lock_guard lock(mutex_);
  STILLMAP_RETURN_IF_ERROR(usable_so_far());
  ucs_status_t s = api().ucp_ep_create(worker_->get(), &params, &endpoint_);
  if (s == UCS_ERR_UNREACHABLE) {
    // Shared memory does not watch the peer: the socket does.
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    s = api().ucp_ep_create(worker_->get(), &params, &endpoint_);
  }
  if (s == UCS_OK) return {};
  endpoint_ = nullptr;
  return tl::unexpected(
      make_error(errc::not_supported,
                 "UCX has no transport between the two ends: compare their transports and networks")
          .value()
          .about(api().ucs_status_string(s)));
}

status channel::send(std::span<const std::byte> bytes, std::chrono::milliseconds timeout) {
  const operation_scope scope("migration::channel::send");
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), max_piece_bytes));
    {
      const lock_guard lock(mutex_);
      STILLMAP_RETURN_IF_ERROR(usable());
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
      param.cb.send = &channel::on_sent;
      param.user_data = this;
      sent_ = std::nullopt;
      const ucs_status_ptr_t started =
          api().ucp_stream_send_nbx(endpoint_, piece.data(), piece.size(), &param);
      if (started == nullptr || UCS_PTR_IS_ERR(started)) {
        sent_ = UCS_PTR_STATUS(started);
      } else {
        send_request_ = started;
      }
    }
    const auto is_sent = [&]() STILLMAP_REQUIRES(mutex_) -> std::optional<status> {
      if (!sent_) return std::nullopt;
      if (send_request_ != nullptr) api().ucp_request_free(std::exchange(send_request_, nullptr));
      if (*sent_ == UCS_OK) return status();
      STILLMAP_RETURN_IF_ERROR(usable());  // says why, where it is known
      return ucx_error(*sent_, "the connection is broken");
    };
    STILLMAP_RETURN_IF_ERROR(wait(sending, is_sent, timeout));
    bytes = bytes.subspan(piece.size());
  }
  return {};
}

status channel::receive(std::span<std::byte> into, std::chrono::milliseconds timeout) {
  const operation_scope scope("migration::channel::receive");
  while (!into.empty()) {
    const auto arrived = [&]() STILLMAP_REQUIRES(mutex_) -> std::optional<status> {
      const std::size_t bytes = take_received(into);
      if (bytes == 0) return std::nullopt;
      into = into.subspan(bytes);
      return status();
    };
    STILLMAP_RETURN_IF_ERROR(wait(receiving, arrived, timeout));
  }
  return {};
}

// Not ucp_stream_recv_nbx(): UCX 1.13 does not complete such a request when the connection ends.
std::size_t channel::take_received(std::span<std::byte> into) noexcept {
  if (endpoint_ == nullptr) return 0;
  if (received_ == nullptr) {
    const ucs_status_ptr_t data = api().ucp_stream_recv_data_nb(endpoint_, &received_bytes_);
    if (data == nullptr || UCS_PTR_IS_ERR(data)) return 0;
    received_ = data;
    received_used_ = 0;
  }
  const std::size_t bytes = std::min(into.size(), received_bytes_ - received_used_);
  std::memcpy(into.data(), static_cast<const std::byte *>(received_) + received_used_, bytes);
  received_used_ += bytes;
  if (received_used_ == received_bytes_) release_received();
  return bytes;
}

void channel::release_received() noexcept {
  if (received_ != nullptr)
    api().ucp_stream_data_release(endpoint_, std::exchange(received_, nullptr));
}

template <class Ready>
status channel::wait(direction d, const Ready &ready, std::chrono::milliseconds timeout) {
  const auto until = clock::now() + timeout;
  for (bool can_sleep = true;;) {
    auto wake_at = until;
    // UCX wants to be asked again: over shared memory no event says that the peer has read what it was sent. Asking
    // without pause keeps the peer from reading it where processors are few.
    if (!can_sleep) std::this_thread::yield();
    {
      const lock_guard lock(mutex_);
      waits_[d] = false;
      if (auto end = advance(d, ready, until)) return *std::move(end);
      can_sleep = worker_->arm();
      if (!can_sleep) continue;
      waits_[d] = true;
      if (gone_) wake_at = std::min(until, *gone_);
    }
    const bool ended =
        wait_for_event(efd_, wake_[d], wake_at == until ? socket_.get() : -1, wake_at);
    if (!ended) continue;
    const lock_guard lock(mutex_);
    if (!gone_) gone_ = clock::now() + grace;
  }
}

template <class Ready>
std::optional<status> channel::advance(direction d, const Ready &ready, clock::time_point until) {
  for (int i = 0;; ++i) {
    if (auto end = ready()) {
      if (!*end) break_off();
      return end;
    }
    if (i == spins_before_sleep || endpoint_ == nullptr) break;
    progress(d);
  }
  status s = usable();
  const auto now = clock::now();
  if (s && gone_ && now >= *gone_) {
    s = make_system_error(ECONNRESET, "the peer has closed the connection");
  } else if (s && now >= until) {
    s = make_error(errc::busy, "timed out: the peer is silent");
  }
  if (s) return std::nullopt;
  break_off();
  return s;
}

status channel::usable_so_far() const {
  if (shut_down_) return make_system_error(EPIPE, "the connection was shut down");
  return {};
}

status channel::usable() const {
  STILLMAP_RETURN_IF_ERROR(usable_so_far());
  if (failure_ != UCS_OK) return ucx_error(failure_, "the connection is broken");
  if (endpoint_ == nullptr) return make_system_error(EPIPE, "the connection is not open");
  return {};
}

void channel::progress(direction of) noexcept {
  const bool events = worker_->progress();
  // What the other thread waits for may have been among them.
  const unsigned other = of ^ 1U;
  if (events && waits_[other]) wake_[other].set();
}

void channel::break_off() noexcept {
  ::shutdown(socket_.get(), SHUT_RDWR);
  if (endpoint_ != nullptr) {
    release_received();
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing =
        api().ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
    const bool waits = closing != nullptr && !UCS_PTR_IS_ERR(closing);
    const auto until = clock::now() + disconnect_timeout;
    while (clock::now() < until &&
           (!sent_ || (waits && api().ucp_request_check_status(closing) == UCS_INPROGRESS))) {
      worker_->progress();
    }
    if (waits) api().ucp_request_free(closing);
  }
  for (const wake_up &w : wake_) w.set();
}

void channel::flush(clock::time_point until) noexcept {
  for (bool ended = false; !ended && clock::now() < until;) {
    const lock_guard lock(mutex_);
    if (!usable()) return;
    ucp_request_param_t param{};
    const ucs_status_ptr_t flushing = api().ucp_ep_flush_nbx(endpoint_, &param);
    ended = flushing == nullptr || UCS_PTR_IS_ERR(flushing);
    if (ended) return;
    while (!ended && clock::now() < until) {
      worker_->progress();
      ended = api().ucp_request_check_status(flushing) != UCS_INPROGRESS;
    }
    api().ucp_request_free(flushing);
  }
}

void channel::close_gracefully(std::chrono::milliseconds timeout) noexcept {
  const auto until = clock::now() + timeout;
  flush(std::min(until, clock::now() + disconnect_timeout));
  ::shutdown(socket_.get(), SHUT_WR);
  for (std::array<std::byte, 64> discarded; clock::now() < until;) {
    if (!checkpoint::wait_for_socket(socket_.get(), POLLIN, until)) return;
    const ssize_t n = ::recv(socket_.get(), discarded.data(), discarded.size(), 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
  }
}

void channel::shutdown() noexcept {
  const lock_guard lock(mutex_);
  shut_down_ = true;
  break_off();
}

// UCX calls these in worker::progress() and ucp_ep_close_nbx(), so with the mutex.
STILLMAP_NO_THREAD_SAFETY_ANALYSIS
void channel::on_sent(void *, ucs_status_t s, void *of) noexcept {
  static_cast<channel *>(of)->sent_ = s;
}
STILLMAP_NO_THREAD_SAFETY_ANALYSIS
void channel::on_error(void *of, ucp_ep_h, ucs_status_t s) noexcept {
  static_cast<channel *>(of)->failure_ = s;
}

}  // namespace stillmap::ucx
