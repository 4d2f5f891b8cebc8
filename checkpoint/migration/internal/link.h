// The connections of one migration at its source: one to talk, others for contents. Internal.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "stillmap/checkpoint/common/internal/batch_copier.h"
#include "stillmap/checkpoint/common/internal/host_memory.h"
#include "stillmap/checkpoint/migration/internal/outgoing.h"
#include "stillmap/checkpoint/migration/internal/round.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {

// No faster than so many bytes a second, all threads together.
class pace {
 public:
  explicit pace(std::uint64_t bytes_per_second) : rate_(bytes_per_second) {}
  // Waits until so many more may go.
  void take(std::uint64_t bytes);

 private:
  const std::uint64_t rate_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_{};
};

// Threads: externally synchronised, but for cut().
class link {
 public:
  // What went, for those who watch; from any of its threads, one at a time.
  using told = std::function<void(std::uint64_t bytes, bool zeros)>;

  link(const device &d, const send_options &how)
      : device_(d), how_(how), pace_(how.bytes_per_second) {}

  // Errors: as connecting and opening; the destination's refusal.
  status greet(transport &to, const hello &h);
  status join(transport &to);
  // The layout, and waits until it is there.
  status prepare(const layout_message &l);
  // Chunks `which`; those that did not arrive are unknown again afterwards. How many those are.
  // `finding` is what fills `which`, on a thread of its own if there is one to be had.
  result<std::size_t> copy(outgoing &from, round &which, const std::function<status()> &finding,
                           std::uint64_t number, const told &tell);
  // What all should be. Empty: it is; else chunks that are not.
  result<std::vector<std::uint64_t>> seal(const outgoing &from);
  // Errors: after these nobody knows whether the destination has heard it.
  status commit(const question &q);
  void discard();

  const session_id &session() const { return session_; }
  peer who() const { return who_; }
  // From any thread: everything under way fails.
  void cut();

 private:
  struct lane;
  status carry(lane &l, outgoing &from, round &which, const told &tell);
  status send_chunk(lane &l, std::size_t buffer, outgoing::chunk &c, const told &tell);
  result<std::unique_ptr<channel>> open(transport &to);

  const device device_;
  const send_options &how_;
  pace pace_;
  std::mutex cutting_;
  bool cut_ = false;
  channel *opening_ = nullptr;
  std::mutex telling_;
  std::unique_ptr<channel> control_;
  std::vector<std::unique_ptr<channel>> data_;
  session_id session_;
  peer who_;
  std::size_t chunk_room_ = 0;
  std::optional<checkpoint::transfer> by_;
  checkpoint::host_memory buffers_;
};

// Asks the destination once what became of a session, and has it own where it waits for the word.
// `owns` or `never`. Errors: nobody knows.
result<standing> ask(transport &to, const question &q, patience wait);

}  // namespace stillmap::migration
