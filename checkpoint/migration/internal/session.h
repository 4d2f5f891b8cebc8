// One task's way to here: what its source says, and what becomes of it. Internal to receiver.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "stillmap/checkpoint/migration/internal/incoming.h"
#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {

// Threads: safe.
class session {
 public:
  using clock = std::chrono::steady_clock;

  // Checks that it may come here at all. Errors: busy (the record is another's; it is here already
  // or has been under this epoch), the system's.
  static result<std::shared_ptr<session>> create(const device &d, const receive_options &how,
                                                 const hello &h, peer from);

  const session_id &id() const { return id_; }
  bool is_of(const task_id &task, const peer &from) const {
    return hello_.task == task && from_.fingerprint == from.fingerprint;
  }

  // The channel that talks: until it is owned, kept by its source, or cut. Why it did not come.
  status talk(channel &with);
  // A channel that brings contents, until it is cut.
  status carry(channel &from);

  // What there is to say to who asks; afterwards nothing else is. Errors: none.
  standing answer();
  // The source's word, by any channel. Errors: corrupt (it is not about this, or not time for it),
  // the system's (the record).
  status commit(const question &q);

  // Whether it may still come: talking, or everything is here and the word is waited for.
  bool alive() const;
  bool owned() const;
  // Everything under way fails; what is here goes.
  void end();
  // Cuts it where nothing has moved for too long.
  void end_if_silent();
  // Requires: owned(), once.
  result<arrived_memory> deliver();

 private:
  enum class state { copying, waiting, owned, delivered, dead };
  session(const device &d, const receive_options &how, const hello &h, peer from, record_file r,
          session_id id);
  status say(kind what, std::span<const std::byte> body, std::uint64_t number);
  status listen(channel &with);
  status bring(channel &from);
  status round_over(const std::vector<std::uint64_t> &bad, std::uint64_t round);
  void moved() { last_moved_ = clock::now().time_since_epoch().count(); }
  void reached(step s) const {
    if (how_.at) how_.at(s);
  }

  const device device_;
  const receive_options &how_;
  const hello hello_;
  const peer from_;
  const session_id id_;
  incoming memory_;
  std::atomic<clock::rep> last_moved_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  state state_ = state::copying;
  std::optional<record_file> record_;
  image::digest contents_;
  channel *talking_ = nullptr;
  std::vector<channel *> carrying_;
  std::size_t through_ = 0;         // with this round, so many channels
  std::vector<std::uint64_t> bad_;  // of it, theirs
};

}  // namespace stillmap::migration
