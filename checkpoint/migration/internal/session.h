// One incoming migration at the destination: from the source's first message to its outcome.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <vector>

#include "stillmap/checkpoint/migration/internal/destination_memory.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::migration {

// States: copying <-> awaiting_commit -> owned -> delivered; the first two also -> dead.
// Threads: safe. Lock order: the receiver's, mutex_, then that of memory_, of a channel or of files.
class session {
 public:
  using clock = std::chrono::steady_clock;

  // Checks the record, and whether the device can hold the task.
  // Errors: busy (another process holds the record; the task is already here, or was under this
  //         epoch), not_supported (page sizes; a device without VMM), the system's.
  static result<std::shared_ptr<session>> create(const device &d, const hello &h,
                                                 peer_identity from,
                                                 const receive_options &options);

  // Elements of the receiver's lists, made with the session: handing a task over must not fail.
  struct list_elements {
    std::list<std::shared_ptr<session>> arrived{nullptr};
    std::list<std::shared_ptr<session>> owned{nullptr};
  };
  list_elements &elements() { return elements_; }  // guarded by the receiver

  const session_id &id() const { return id_; }
  bool is_of(const task_id &task, const peer_identity &from) const {
    return hello_.task == task && from_.fingerprint == from.fingerprint;
  }

  // Serves the control channel until the destination owns the task, or the migration fails.
  status serve_control(channel &control) noexcept;
  // Serves a data channel until it is closed.
  status serve_data(channel &data);

  // The outcome, for a source that asks on another connection. A session that is still copying
  // fails: after this answer it can never succeed.
  // Errors: as record_file::confirm() (the record decides, and not this session).
  result<outcome> answer_query();
  // Commits, on any channel.
  // Errors: corrupt (another session, not awaiting a commit, or a round is under way), the system's
  //         (the record).
  status commit(const outcome_query &q) noexcept STILLMAP_EXCLUDES(mutex_);

  // Whether the session may still succeed.
  bool alive() const STILLMAP_EXCLUDES(mutex_);
  bool owned() const;
  // Fails a session that is not owned. Shuts down the channels of any.
  void cancel() STILLMAP_EXCLUDES(mutex_);
  // Cancels after receive_options::resolve_timeout without a message.
  void cancel_if_silent();
  // Records that the task runs here, and passes on its memory.
  // Requires: owned().
  // Ensures:  failure: still owned(), unless the record says that the transfer was refused.
  result<received_memory> deliver();

 private:
  enum class state { copying, awaiting_commit, owned, delivered, dead };
  session(const device &d, const hello &h, peer_identity from, record_file file, record before,
          session_id id, const receive_options &options);
  // Records the offer, before the source can learn that this end is prepared: a process that comes
  // later then knows what it is asked about.
  status record_offer() STILLMAP_EXCLUDES(mutex_);
  // A commit needs another seal. Errors: corrupt (the outcome has been decided).
  status unseal() STILLMAP_EXCLUDES(mutex_);
  // The record once this machine owns the task.
  record make_record(ownership o) const STILLMAP_REQUIRES(mutex_);
  record make_refusal() const STILLMAP_REQUIRES(mutex_);
  status send_control(kind what, std::span<const std::byte> body = {}, std::uint64_t number = 0)
      STILLMAP_EXCLUDES(mutex_);
  void refuse(const error &why) noexcept STILLMAP_EXCLUDES(mutex_);
  status receive_control(channel &control);
  status receive_data(channel &data);
  // The channel that ends a round last sends the result of all channels.
  status end_round(const std::vector<std::uint64_t> &damaged, std::uint64_t round)
      STILLMAP_EXCLUDES(mutex_);
  void touch() { last_message_ = clock::now().time_since_epoch().count(); }
  void reached(step s) const {
    if (options_.on_step) options_.on_step(s);
  }

  const device device_;
  const receive_options &options_;
  const hello hello_;
  const peer_identity from_;
  const session_id id_;
  destination_memory memory_;
  std::atomic<clock::rep> last_message_;
  list_elements elements_;

  mutable mutex mutex_;
  condition_variable changed_;
  state state_ STILLMAP_GUARDED_BY(mutex_) = state::copying;
  std::optional<record_file> file_ STILLMAP_GUARDED_BY(mutex_);
  record record_ STILLMAP_GUARDED_BY(mutex_);         // without a commit of this session
  bool offered_ STILLMAP_GUARDED_BY(mutex_) = false;  // record_ lists this session
  image::digest contents_ STILLMAP_GUARDED_BY(mutex_);
  channel *control_ STILLMAP_GUARDED_BY(mutex_) = nullptr;
  std::vector<channel *> data_ STILLMAP_GUARDED_BY(mutex_);
  // Of the first data channel whose failure ended the control channel.
  status data_failure_ STILLMAP_GUARDED_BY(mutex_);
  std::size_t channels_done_ STILLMAP_GUARDED_BY(mutex_) = 0;  // with this round
  // Chunks of this round, of those channels.
  std::vector<std::uint64_t> damaged_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace stillmap::migration
