// Precopy: copies a task's memory while it runs, round after round until little is left, and the
// rest after it has stopped.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stillmap/checkpoint/migration/internal/progress_reporter.h"
#include "stillmap/checkpoint/migration/internal/source_connections.h"
#include "stillmap/checkpoint/migration/internal/source_memory.h"
#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {

// Threads: externally synchronised.
class precopy {
 public:
  // Updates the counts in `out`.
  precopy(const send_options &options, source_memory &from, source_connections &to,
          progress_reporter &reporter, sent_memory &out)
      : options_(options), from_(from), to_(to), reporter_(reporter), out_(out) {}

  // Copies until the expected downtime is short enough, or further rounds would not shorten it.
  // Errors: busy (no convergence; or examining all memory takes longer than max_downtime: value and limit
  //         in ms), not_supported (the device cannot detect changes), both only with
  //         no_convergence::cancel; corrupt, those of the connections, the driver's.
  status copy_while_running();
  // Copies what a task that could be stopped has changed meanwhile.
  // Errors: as above.
  status copy_again();
  // Copies what has changed since.
  // Requires: the task has stopped.
  // Ensures:  success: the destination has verified all contents.
  // Errors:   as above.
  status copy_rest();

  // Whether send_options::throttle is in effect.
  bool throttled() const { return throttled_; }

 private:
  struct downtime_estimate {
    double fixed = 0, scanning = 0, sending = 0;  // seconds
    std::uint64_t bytes_left = 0;
    double seconds() const { return fixed + scanning + sending; }
    double without_sending() const { return fixed + scanning; }
  };
  // Whether to copy another round; no: the task can be stopped.
  result<bool> another_round(const downtime_estimate &e, std::size_t sent);
  // Rounds; each returns the number of chunks it sent.
  result<std::size_t> copy(std::vector<std::size_t> chunks);
  result<std::size_t> copy_changes(bool running);
  result<std::size_t> copy(copy_round &round, const std::function<status()> &find);

  status find_changes(copy_round &into, bool running);
  result<downtime_estimate> estimate_downtime();
  status update_layout(bool running);
  std::uint64_t bytes_of(const std::vector<std::size_t> &chunks) const;
  double max_downtime() const {
    return std::chrono::duration<double>(options_.max_downtime).count();
  }

  const send_options &options_;
  source_memory &from_;
  source_connections &to_;
  progress_reporter &reporter_;
  sent_memory &out_;
  bool can_detect_changes_ = true, throttled_ = false;
  double bytes_per_second_ = 0;  // of the last round that measured the connections
  double scan_seconds_ = 0;      // of this round
  double round_seconds_ = 0;     // of the last round
  double layout_seconds_ = 0;    // that reading the ledger took
  std::size_t previous_ = 0;     // chunks sent in the round before
  std::size_t stuck_ = 0;        // rounds in a row that got little nearer
  int throttlings_ = 0;          // times that the task was asked to write less
};

}  // namespace stillmap::migration
