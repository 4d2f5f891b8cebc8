#include "stillmap/migration/copying.h"

#include <algorithm>

namespace stillmap::migration {
namespace {

using clock = std::chrono::steady_clock;

constexpr const char *op = "migration::send";
constexpr int most_attempts = 4;  // of chunks that arrive damaged

double seconds_since(clock::time_point t) {
  return std::chrono::duration<double>(clock::now() - t).count();
}

}  // namespace

status copying::while_it_runs() {
  if (from_.chunks().empty()) return {};
  // A device that cannot tell what has changed gets one round, standing still.
  can_look_ = from_.prepare_digests().has_value();
  if (!can_look_) {
    if (how_.otherwise == when_it_does_not_converge::stop_and_copy) return {};
    return refuse(condition::not_supported, op,
                  "the device cannot tell what has changed, and a long pause is not wanted");
  }
  std::vector<std::size_t> which = from_.all();
  std::size_t before = which.size(), stuck = 0;
  double slower = 0;
  for (;;) {
    if (status s = copy(which); !s) return s;
    const auto guess = guess_pause();
    if (!guess) return tl::unexpected(guess.error());
    if (guess->all() <= 0.8 * wanted_pause()) return {};
    // Looking takes as long after another round: with little to send, that is of no use.
    const bool bearable = guess->all() <= wanted_pause() ||
                          how_.otherwise == when_it_does_not_converge::stop_and_copy;
    if (guess->sending * 4 <= guess->looking && bearable) return {};
    if (status s = look_again(false); !s) return s;
    auto dirty = look_for_changes();
    if (!dirty) return tl::unexpected(dirty.error());
    which = std::move(*dirty);
    if (which.empty()) return {};
    stuck = which.size() * 10 > before * 8 ? stuck + 1 : 0;
    before = which.size();
    if (out_.rounds < how_.most_rounds && stuck < 2) continue;
    if (how_.throttle && slower < 0.9) {
      slower = std::min(0.95, slower + 0.3);
      how_.throttle(slower);
      throttled_ = true;
      stuck = 0;
      if (out_.rounds < 2 * how_.most_rounds) continue;
    }
    return how_.otherwise == when_it_does_not_converge::stop_and_copy ? status() : too_fast(which);
  }
}

status copying::too_fast(const std::vector<std::size_t> &left) const {
  return refuse(condition::busy, op,
                "the task writes faster than it can be copied (bytes left, bytes that fit)",
                bytes_of(left), static_cast<std::uint64_t>(rate_ * wanted_pause()));
}

status copying::the_rest() {
  if (status s = look_again(true); !s) return s;
  auto left = can_look_ ? look_for_changes() : result<std::vector<std::size_t>>(from_.all());
  if (!left) return tl::unexpected(left.error());
  for (int attempts = 0; attempts < most_attempts; ++attempts) {
    if (status s = copy(*left); !s) return s;
    tells_.reached(step::sealed);
    const auto bad = over_.seal(from_);
    if (!bad) return tl::unexpected(bad.error());
    if (bad->empty()) {
      tells_.reached(step::verified);
      return {};
    }
    out_.resent += bad->size();
    left->clear();
    for (const std::size_t i : from_.all()) {
      const std::uint64_t number = from_.chunks()[i].number;
      if (std::find(bad->begin(), bad->end(), number) != bad->end()) left->push_back(i);
    }
  }
  return refuse(condition::corrupt, op, "the same chunks arrive damaged again and again",
                left->size());
}

// A round: `which`, and again what did not arrive as it left.
status copying::copy(const std::vector<std::size_t> &which) {
  std::vector<std::size_t> now = which;
  const std::uint64_t bytes = bytes_of(which);
  ++out_.rounds;
  tells_.note([&](progress &p) {
    p.round = out_.rounds;
    p.bytes = out_.bytes;
    p.round_sent = 0;
    p.round_bytes = bytes;
  });
  const auto began = clock::now();
  for (int attempts = 0; attempts < most_attempts; ++attempts) {
    const auto bad = over_.copy(from_, now, out_.rounds, [this](std::uint64_t n, bool zeros) {
      (zeros ? out_.zero_bytes : out_.bytes_sent) += n;
      tells_.went(n, zeros);
    });
    if (!bad) return tl::unexpected(bad.error());
    if (*bad == 0) {
      const double took = seconds_since(began);
      // Of a round that is too short nothing is learned.
      if (bytes >= (1 << 20) && took > 0) rate_ = static_cast<double>(bytes) / took;
      tells_.note([&](progress &p) { p.bytes_per_second = rate_; });
      tells_.reached(step::copied);
      return {};
    }
    out_.resent += *bad;
    now.clear();
    for (const std::size_t i : which) {
      if (!from_.chunks()[i].known) now.push_back(i);
    }
  }
  return refuse(condition::corrupt, op, "the same chunks arrive damaged again and again",
                now.size());
}

// If it stopped now: from a few chunks, and so for all.
result<copying::pause_guess> copying::guess_pause() {
  const std::size_t all = from_.chunks().size();
  const std::vector<std::size_t> some = from_.some(std::clamp<std::size_t>(all / 16, 64, 4096));
  const auto began = clock::now();
  const auto dirty = from_.changed(some);
  if (!dirty) return tl::unexpected(dirty.error());
  const double share = static_cast<double>(all) / static_cast<double>(some.size());
  const double left = share * static_cast<double>(bytes_of(*dirty));
  const pause_guess guess{seconds_since(began) * share, rate_ > 0 ? left / rate_ : 0};
  tells_.note([&](progress &p) { p.expected_pause = guess.all(); });
  return guess;
}

result<std::vector<std::size_t>> copying::look_for_changes() {
  auto dirty = from_.changed(from_.all());
  if (dirty) out_.clean_bytes += from_.bytes() - bytes_of(*dirty);
  return dirty;
}

// The task may have grown. While it runs, what cannot be seen now is seen later.
status copying::look_again(bool standing_still) {
  const auto seen = from_.look();
  if (!seen) return standing_still ? status(tl::unexpected(seen.error())) : status();
  if (!*seen) return {};
  out_.bytes = from_.bytes();
  return over_.prepare(from_.layout());
}

std::uint64_t copying::bytes_of(const std::vector<std::size_t> &which) const {
  std::uint64_t sum = 0;
  for (const std::size_t i : which) sum += from_.chunks()[i].at.bytes;
  return sum;
}

}  // namespace stillmap::migration
