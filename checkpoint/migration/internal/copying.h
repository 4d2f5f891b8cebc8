// Copying a task's memory while it runs, again and again until little is left, and that little once
// it stands still. Internal to sender.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stillmap/checkpoint/migration/internal/link.h"
#include "stillmap/checkpoint/migration/internal/outgoing.h"
#include "stillmap/checkpoint/migration/internal/reporter.h"
#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {

// Threads: externally synchronised.
class copying {
 public:
  // Counts in `out` what it does.
  copying(const send_options &how, outgoing &from, link &over, reporter &tells, sent_memory &out)
      : how_(how), from_(from), over_(over), tells_(tells), out_(out) {}

  // Until what is left fits into the pause, or it is time to stop all the same.
  // Errors: busy (it does not converge, and a long pause is not wanted), not_supported (as long:
  // the device cannot tell what has changed), corrupt, the link's, the driver's.
  status while_it_runs();
  // Requires: the task stands still. Ensures: the destination has what is there. Errors: as above.
  status the_rest();

  // Whether the task was asked to write less.
  bool throttled() const { return throttled_; }

 private:
  // Seconds that the task would stand still.
  struct pause_guess {
    double looking = 0, sending = 0;
    std::uint64_t left = 0;  // bytes
    double all() const { return 0.01 + looking + sending; }
  };
  // Rounds: how many chunks went.
  result<std::size_t> copy(std::vector<std::size_t> which);
  result<std::size_t> copy_what_changed(bool running);
  result<std::size_t> copy(round &which, const std::function<status()> &finding);
  status find_changes(round &into, bool running);
  result<pause_guess> guess_pause();
  status look_again(bool standing_still);
  std::uint64_t bytes_of(const std::vector<std::size_t> &which) const;
  double wanted_pause() const { return std::chrono::duration<double>(how_.pause).count(); }

  const send_options &how_;
  outgoing &from_;
  link &over_;
  reporter &tells_;
  sent_memory &out_;
  bool can_look_ = true, throttled_ = false;
  double rate_ = 0;    // bytes a second, of the last round that told
  double looked_ = 0;  // seconds of this round
};

}  // namespace stillmap::migration
