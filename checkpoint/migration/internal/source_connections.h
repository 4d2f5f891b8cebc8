// Connections of one migration at the source: a control channel and the data channels.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/common/batch_copier.h"
#include "stillmap/checkpoint/common/host_memory.h"
#include "stillmap/checkpoint/migration/internal/copy_round.h"
#include "stillmap/checkpoint/migration/internal/source_memory.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::migration {

// Limits the bandwidth of all threads together.
// Threads: safe.
class rate_limiter {
 public:
  using clock = std::chrono::steady_clock;
  // A sender that was held up may catch up on this much time at once.
  static constexpr std::chrono::milliseconds burst{10};

  // 0: unlimited.
  explicit rate_limiter(std::uint64_t bytes_per_second) : rate_(bytes_per_second) {}
  // Waits until `bytes` may be sent.
  void acquire(std::uint64_t bytes);
  // The time at which `bytes` may be sent, given the time now. They count as sent then.
  clock::time_point reserve(std::uint64_t bytes, clock::time_point now);

 private:
  const std::uint64_t rate_;
  mutex mutex_;
  clock::time_point next_ STILLMAP_GUARDED_BY(mutex_){};
};

// Threads: externally synchronised, except shutdown(). Lock order: on_chunk_mutex_, shutdown_mutex_ (an
// on_chunk may cancel), then a channel's.
class source_connections {
 public:
  // Called for every chunk, one thread at a time.
  using on_chunk = std::function<void(std::uint64_t bytes, bool zeros)>;

  source_connections(const device &d, const send_options &options)
      : device_(d), options_(options), limiter_(options.bytes_per_second) {}

  // Opens the control channel and begins a session.
  // Errors: as connecting and the handshake; the destination's refusal.
  status open(transport &to, const hello &h);
  // Opens the data channels: over options.data_connector's transport if the destination announces it and the first of
  // them opens, else over `to`.
  // Errors: as open().
  status open_channels(transport &to);
  // As sent_memory, once open_channels() has been called.
  const std::string &data_transport() const { return data_transport_; }
  const std::optional<error> &data_fallback() const { return data_fallback_; }
  // Sends the layout, and waits until the destination has reserved the addresses.
  status prepare(const layout_message &l);
  // Sends the chunks of a round and returns how many arrived damaged; these are marked as unknown.
  // `find` adds chunks to the round, on a thread of its own if one can be created.
  result<std::size_t> copy(source_memory &from, copy_round &round,
                           const std::function<status()> &find, std::uint64_t number,
                           const on_chunk &sent);
  // Sends the digests of all chunks; returns the chunks that differ at the destination.
  result<std::vector<std::uint64_t>> seal(const source_memory &from);
  // Sends the commit. After an error it is unknown whether the destination has received it.
  status commit(const outcome_query &q) noexcept;
  // Whether the destination keeps the control connection, where it has nothing to say.
  bool is_alive() noexcept;
  // Tells the destination that the source keeps the task. Best effort.
  void discard() noexcept;

  const session_id &session() const { return session_; }
  peer_identity peer() const { return peer_; }
  // Fails everything that is under way.
  // Threads: any.
  void shutdown() noexcept;

 private:
  struct lane;
  status send_chunks(lane &l, source_memory &from, copy_round &round, const on_chunk &sent);
  status send_chunk(lane &l, std::size_t buffer, source_memory::chunk &c,
                    const image::digest_key &key, const on_chunk &sent);
  void set_connecting(channel *now) STILLMAP_EXCLUDES(shutdown_mutex_);
  result<std::unique_ptr<channel>> connect(transport &to, std::chrono::milliseconds timeout);
  // Opens the first data channel where the destination announces.
  // Errors: as sent_memory::data_fallback.
  status open_announced();
  // `peer`: the certificate that the destination must have; null: any.
  status open_channel(transport &to, const peer_identity *peer, std::chrono::milliseconds timeout);
  std::size_t data_channel_count() STILLMAP_EXCLUDES(shutdown_mutex_);
  // Once they are open: they stay.
  channel &control() STILLMAP_EXCLUDES(shutdown_mutex_);
  channel &data(std::size_t i) STILLMAP_EXCLUDES(shutdown_mutex_);

  const device device_;
  const send_options &options_;
  rate_limiter limiter_;
  mutex shutdown_mutex_;
  bool shut_down_ STILLMAP_GUARDED_BY(shutdown_mutex_) = false;
  std::unique_ptr<transport> announced_;  // outlives its channels
  channel *connecting_ STILLMAP_GUARDED_BY(shutdown_mutex_) = nullptr;
  mutex on_chunk_mutex_;  // held while an on_chunk is called
  std::unique_ptr<channel> control_ STILLMAP_GUARDED_BY(shutdown_mutex_);
  std::vector<std::unique_ptr<channel>> data_ STILLMAP_GUARDED_BY(shutdown_mutex_);
  session_id session_;
  data_endpoint endpoint_;
  std::string data_transport_;
  std::optional<error> data_fallback_;
  peer_identity peer_;
  std::size_t buffer_bytes_ = 0;  // of one header and one chunk
  std::optional<checkpoint::batch_copier> copier_;
  checkpoint::host_memory buffers_;
};

// Asks the destination once for the outcome of a session, and commits if it awaits the commit.
// `certificate`: what the destination must have, SHA-256 in hexadecimal; empty: any trusted one.
// Returns `owner` or `refused`.
// Errors: the outcome is still unknown: not_supported (another certificate), what the destination
//         refused with, the transport's.
result<outcome> ask_outcome(transport &to, const outcome_query &q, std::string_view certificate,
                            std::chrono::milliseconds timeout);

}  // namespace stillmap::migration
