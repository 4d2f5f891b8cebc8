#include "stillmap/checkpoint/migration/internal/precopy.h"

#include <algorithm>

#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

using clock = std::chrono::steady_clock;

constexpr int most_throttled = 3;  // times that the task is asked to write less
constexpr int max_attempts = 4;    // to send a chunk that arrives damaged
// Fewer chunks than a device has processors take one launch as long.
constexpr std::size_t min_scan_chunks = 256;
// Enough chunks to keep the channels busy while others are scanned.
constexpr std::size_t queued_chunks = 16;
// Of a downtime: three synced records, and the messages about them.
constexpr double commit_seconds = 0.01;

double seconds_since(clock::time_point t) {
  return std::chrono::duration<double>(clock::now() - t).count();
}

std::uint64_t milliseconds(double seconds) {
  return static_cast<std::uint64_t>(seconds * 1e3);
}

tl::unexpected<error> still_damaged(std::uint64_t chunks) {
  return make_error(errc::corrupt, "the same chunks arrive damaged repeatedly", chunks, 0,
                    error_unit::items);
}

}  // namespace

status precopy::copy_while_running() {
  if (from_.chunks().empty()) return {};
  const bool stop_and_copy = options_.on_no_convergence == no_convergence::stop_and_copy;
  // A device that cannot detect changes gets one round, with the task stopped.
  const status digests = from_.prepare_digests();
  can_detect_changes_ = digests.has_value();
  if (!can_detect_changes_) {
    if (stop_and_copy) return {};
    if (digests.error().code == std::errc::not_enough_memory) return digests;
    return make_error(errc::not_supported,
                      "the device cannot detect changes, and a long downtime is not allowed");
  }
  for (;;) {
    if (out_.rounds != 0) STILLMAP_RETURN_IF_ERROR(update_layout(true));
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t sent,
                              out_.rounds == 0 ? copy(from_.all()) : copy_changes(true));
    if (sent == 0) return {};
    STILLMAP_ASSIGN_OR_RETURN(const downtime_estimate estimate, estimate_downtime());
    STILLMAP_ASSIGN_OR_RETURN(const bool more, another_round(estimate, sent));
    if (!more) return {};
  }
}

status precopy::copy_again() {
  // The destination gives up a source that is silent for long.
  if (!can_detect_changes_ || from_.chunks().empty()) return to_.prepare(from_.layout());
  STILLMAP_RETURN_IF_ERROR(update_layout(true));
  STILLMAP_ASSIGN_OR_RETURN([[maybe_unused]] const std::size_t sent, copy_changes(true));
  return {};
}

result<bool> precopy::another_round(const downtime_estimate &e, std::size_t sent) {
  if (e.seconds() <= max_downtime()) return false;
  const bool stop_and_copy = options_.on_no_convergence == no_convergence::stop_and_copy;
  // Where scanning alone takes too long, no round reaches the aim. What changes during the next round is as much less
  // as that one is shorter; a round that saves a tenth of the downtime is worth its time.
  const double saved = e.sending * (1 - (e.scanning + e.sending) / round_seconds_);
  if (e.without_sending() > max_downtime() && saved < 0.1 * e.seconds()) {
    if (stop_and_copy) return false;
    return make_error(errc::busy,
                      "the task cannot be stopped for so short a time: scanning all its memory for "
                      "changes takes longer",
                      milliseconds(e.without_sending()), milliseconds(max_downtime()),
                      error_unit::milliseconds);
  }
  stuck_ = previous_ != 0 && sent * 10 > previous_ * 8 ? stuck_ + 1 : 0;
  previous_ = sent;
  if (out_.rounds < options_.max_rounds && stuck_ < 2) return true;
  if (options_.throttle && throttlings_ < most_throttled) {
    options_.throttle(0.3 * ++throttlings_);
    throttled_ = true;
    stuck_ = 0;
    if (out_.rounds < 2 * options_.max_rounds) return true;
  }
  if (stop_and_copy) return false;
  return make_error(errc::busy, "the task writes faster than it can be copied", e.bytes_left,
                    static_cast<std::uint64_t>(bytes_per_second_ * max_downtime()),
                    error_unit::bytes);
}

status precopy::copy_rest() {
  STILLMAP_RETURN_IF_ERROR(update_layout(false));
  STILLMAP_ASSIGN_OR_RETURN(std::size_t sent,
                            can_detect_changes_ ? copy_changes(false) : copy(from_.all()));
  for (int attempts = 0; attempts < max_attempts; ++attempts) {
    reporter_.reached(step::sealed);
    STILLMAP_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> damaged, to_.seal(from_));
    if (damaged.empty()) {
      reporter_.reached(step::verified);
      return {};
    }
    out_.resent_chunks += damaged.size();
    std::vector<std::size_t> again;
    for (const std::size_t i : from_.all()) {
      const std::uint64_t number = from_.chunks()[i].number;
      if (std::find(damaged.begin(), damaged.end(), number) != damaged.end()) again.push_back(i);
    }
    STILLMAP_ASSIGN_OR_RETURN(sent, copy(std::move(again)));
  }
  return still_damaged(sent);
}

result<std::size_t> precopy::copy(std::vector<std::size_t> chunks) {
  const std::uint64_t bytes = bytes_of(chunks);
  reporter_.update([&](progress &p) { p.round_bytes = bytes; });
  copy_round round(std::move(chunks));
  return copy(round, [] { return status(); });
}

// Changed chunks are sent while the rest is scanned.
result<std::size_t> precopy::copy_changes(bool running) {
  reporter_.update([](progress &p) { p.round_bytes = 0; });
  copy_round changed;
  auto sent = copy(changed, [&] { return find_changes(changed, running); });
  if (sent) out_.unchanged_bytes += from_.bytes() - bytes_of(changed.all());
  return sent;
}

status precopy::find_changes(copy_round &into, bool running) {
  const std::vector<std::size_t> all = from_.all();
  const std::size_t per_scan = std::max(min_scan_chunks, all.size() / 16 + 1);
  for (std::size_t at = 0; at < all.size(); at += per_scan) {
    const auto batch = std::span(all).subspan(at, std::min(per_scan, all.size() - at));
    const auto began = clock::now();
    const auto changed = from_.changed(batch);
    scan_seconds_ += seconds_since(began);
    if (!changed) return tl::unexpected(changed.error());
    reporter_.update([&](progress &p) { p.round_bytes += bytes_of(*changed); });
    if (!into.add(*changed)) return {};
    // A chunk that is scanned later stays up to date longer.
    if (running) into.await_takers(queued_chunks);
  }
  into.complete();
  return {};
}

// Sends a round, and again the chunks of it that arrived damaged.
result<std::size_t> precopy::copy(copy_round &round, const std::function<status()> &find) {
  ++out_.rounds;
  reporter_.update([&](progress &p) {
    p.round = out_.rounds;
    p.bytes = out_.bytes;
    p.round_sent = 0;
  });
  scan_seconds_ = 0;
  const auto began = clock::now();
  const auto count = [this](std::uint64_t n, bool zeros) {
    (zeros ? out_.zero_bytes : out_.bytes_sent) += n;
    reporter_.add_chunk(n, zeros);
  };
  STILLMAP_ASSIGN_OR_RETURN(std::size_t damaged, to_.copy(from_, round, find, out_.rounds, count));
  for (int attempts = 1; damaged != 0 && attempts < max_attempts; ++attempts) {
    out_.resent_chunks += damaged;
    std::vector<std::size_t> again;
    for (const std::size_t i : round.all()) {
      if (!from_.chunks()[i].known) again.push_back(i);
    }
    copy_round rest(std::move(again));
    STILLMAP_ASSIGN_OR_RETURN(damaged,
                              to_.copy(
                                  from_, rest, [] { return status(); }, out_.rounds, count));
  }
  if (damaged != 0) return still_damaged(damaged);
  const double seconds = round_seconds_ = seconds_since(began);
  const std::uint64_t bytes = bytes_of(round.all());
  // A round that is short, or that spent much of its time scanning, does not measure the
  // connections.
  if (bytes >= (1 << 20) && seconds > 8 * scan_seconds_) {
    bytes_per_second_ = static_cast<double>(bytes) / seconds;
  }
  reporter_.update([&](progress &p) { p.bytes_per_second = bytes_per_second_; });
  reporter_.reached(step::copied);
  return round.all().size();
}

// Scans a sample of the chunks for what has changed since. All of them take as long as in the last round, which
// scanned them all; after the first round, which did not, as long as the sample, extrapolated.
result<precopy::downtime_estimate> precopy::estimate_downtime() {
  const std::size_t all = from_.chunks().size();
  const std::vector<std::size_t> sample = from_.sample(std::clamp<std::size_t>(all / 16, 64, 4096));
  const auto began = clock::now();
  STILLMAP_ASSIGN_OR_RETURN(const std::vector<std::size_t> changed, from_.changed(sample));
  const double factor = static_cast<double>(all) / static_cast<double>(sample.size());
  const double left = factor * static_cast<double>(bytes_of(changed));
  const downtime_estimate estimate{commit_seconds + layout_seconds_,
                                   out_.rounds > 1 ? scan_seconds_ : seconds_since(began) * factor,
                                   bytes_per_second_ > 0 ? left / bytes_per_second_ : 0,
                                   static_cast<std::uint64_t>(left)};
  reporter_.update([&](progress &p) {
    p.expected_downtime = std::chrono::duration<double>(estimate.seconds());
    p.expected_scan = std::chrono::duration<double>(estimate.scanning);
  });
  return estimate;
}

// The task may have grown. A failure while it runs is ignored: a later update will see the change.
status precopy::update_layout(bool running) {
  const auto began = clock::now();
  const auto changed = from_.update();
  layout_seconds_ = seconds_since(began);
  if (!changed) return running ? status() : status(tl::unexpected(changed.error()));
  if (!*changed) return {};
  out_.bytes = from_.bytes();
  return to_.prepare(from_.layout());
}

std::uint64_t precopy::bytes_of(const std::vector<std::size_t> &chunks) const {
  std::uint64_t sum = 0;
  for (const std::size_t i : chunks) sum += from_.chunks()[i].at.bytes;
  return sum;
}

}  // namespace stillmap::migration
