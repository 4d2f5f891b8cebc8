// One connection: a UCP worker with one endpoint, used as a byte stream.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/migration/transport.h"
#include "stillmap/checkpoint/ucx/internal/worker.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::ucx {

// A TCP socket carries the handshake, in which the ends tell each other where their workers are, and then
// nothing: its end says that the peer has gone, whatever UCX notices over shared memory or a network that
// has no connections. After an error every further call fails.
class channel final : public migration::channel {
 public:
  // `socket` is connected, and does not block. `address`: the peer's.
  // Errors: the system's.
  static result<std::unique_ptr<channel>> create(std::shared_ptr<const owned_context> context,
                                                 fork_closed_fd socket, bool accepting,
                                                 std::string address);
  ~channel() override;

  // Exchanges a magic number, the version and the workers' addresses, and then a greeting over UCX.
  // Errors: as receive(); corrupt (another protocol), not_supported (another version; UCX has no transport
  //         between these workers).
  status handshake(std::chrono::milliseconds timeout) override;
  bool handshake_begun() const noexcept override;
  bool encrypted() const noexcept override { return false; }
  migration::peer_identity peer() const override { return {address_, {}, {}}; }
  status send(std::span<const std::byte> bytes, std::chrono::milliseconds timeout) override;
  status receive(std::span<std::byte> into, std::chrono::milliseconds timeout) override;
  void close_gracefully(std::chrono::milliseconds timeout) noexcept override;
  void shutdown() noexcept override;

 private:
  enum direction : unsigned { sending, receiving };
  channel(std::shared_ptr<const owned_context> context, fork_closed_fd socket, bool accepting,
          std::string address, wake_up send, wake_up receive)
      : context_(std::move(context)),
        socket_(std::move(socket)),
        accepting_(accepting),
        address_(std::move(address)),
        wake_{std::move(send), std::move(receive)} {}
  // Errors: as handshake().
  result<std::vector<std::byte>> exchange_addresses(clock::time_point until);
  status create_endpoint(const std::vector<std::byte> &to);
  status usable_so_far() const STILLMAP_REQUIRES(mutex_);  // before there is an endpoint
  status usable() const STILLMAP_REQUIRES(mutex_);
  // Waits until `ready` returns a status, and returns it.
  template <class Ready>
  status wait(direction d, const Ready &ready, std::chrono::milliseconds timeout);
  // Nullopt: not yet.
  template <class Ready>
  std::optional<status> advance(direction d, const Ready &ready, clock::time_point until)
      STILLMAP_REQUIRES(mutex_);
  void progress(direction of) noexcept STILLMAP_REQUIRES(mutex_);
  // Copies what has arrived, if anything, and returns how much.
  std::size_t take_received(std::span<std::byte> into) noexcept STILLMAP_REQUIRES(mutex_);
  void release_received() noexcept STILLMAP_REQUIRES(mutex_);
  void flush(clock::time_point until) noexcept;
  // Ends the connection and all that is under way. UCX uses no buffer of a caller afterwards.
  void break_off() noexcept STILLMAP_REQUIRES(mutex_);

  static void on_sent(void *request, ucs_status_t s, void *channel) noexcept;
  static void on_error(void *channel, ucp_ep_h, ucs_status_t s) noexcept;

  const std::shared_ptr<const owned_context> context_;
  const fork_closed_fd socket_;
  const bool accepting_;
  const std::string address_;
  std::atomic<bool> handshake_begun_{false};
  const std::array<wake_up, 2> wake_;  // of the thread that waits in each direction

  mutex mutex_;  // held while UCX is called, not while its events are awaited
  std::optional<worker> worker_ STILLMAP_GUARDED_BY(mutex_);
  int efd_ = -1;  // of worker_; written by the handshake
  ucp_ep_h endpoint_ STILLMAP_GUARDED_BY(mutex_) = nullptr;
  bool shut_down_ STILLMAP_GUARDED_BY(mutex_) = false;
  ucs_status_t failure_ STILLMAP_GUARDED_BY(mutex_) = UCS_OK;
  // Since the socket has ended: when to stop waiting for what UCX may still deliver.
  std::optional<clock::time_point> gone_ STILLMAP_GUARDED_BY(mutex_);
  // Of the last send. Nullopt: UCX still reads the caller's buffer.
  std::optional<ucs_status_t> sent_ STILLMAP_GUARDED_BY(mutex_) = UCS_OK;
  void *send_request_ STILLMAP_GUARDED_BY(mutex_) = nullptr;
  // A piece of what has arrived, in UCX's memory.
  void *received_ STILLMAP_GUARDED_BY(mutex_) = nullptr;
  std::size_t received_bytes_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::size_t received_used_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::array<bool, 2> waits_ STILLMAP_GUARDED_BY(mutex_){};  // a thread sleeps in this direction
};

}  // namespace stillmap::ucx
