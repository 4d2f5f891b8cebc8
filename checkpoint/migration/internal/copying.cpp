#include "stillmap/checkpoint/migration/internal/copying.h"

#include <algorithm>

namespace stillmap::migration {
namespace {

using clock = std::chrono::steady_clock;

constexpr const char *op = "migration::send";
constexpr int most_attempts = 4;  // of chunks that arrive damaged
// A launch for fewer chunks than a device has processors takes as long.
constexpr std::size_t least_looked_at = 256;
// As many chunks keep the channels busy while some are looked at.
constexpr std::size_t few = 16;

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
    return make_error(errc::not_supported, op,
                  "the device cannot tell what has changed, and a long pause is not wanted");
  }
  std::size_t before = 0, stuck = 0;
  double slower = 0;
  for (;;) {
    if (out_.rounds != 0) {
      if (status s = look_again(false); !s) return s;
    }
    const auto went = out_.rounds == 0 ? copy(from_.all()) : copy_what_changed(true);
    if (!went) return tl::unexpected(went.error());
    if (*went == 0) return {};
    const auto guess = guess_pause();
    if (!guess) return tl::unexpected(guess.error());
    if (guess->all() <= wanted_pause()) return {};
    // Looking takes as long after another round: with little to send, that is of no use.
    if (guess->sending * 4 <= guess->looking &&
        how_.otherwise == when_it_does_not_converge::stop_and_copy) {
      return {};
    }
    stuck = before != 0 && *went * 10 > before * 8 ? stuck + 1 : 0;
    before = *went;
    if (out_.rounds < how_.most_rounds && stuck < 2) continue;
    if (how_.throttle && slower < 0.9) {
      slower = std::min(0.95, slower + 0.3);
      how_.throttle(slower);
      throttled_ = true;
      stuck = 0;
      if (out_.rounds < 2 * how_.most_rounds) continue;
    }
    if (how_.otherwise == when_it_does_not_converge::stop_and_copy) return {};
    return make_error(errc::busy, op,
                  "the task writes faster than it can be copied (bytes left, bytes that fit)",
                  guess->left, static_cast<std::uint64_t>(rate_ * wanted_pause()));
  }
}

status copying::the_rest() {
  if (status s = look_again(true); !s) return s;
  auto went = can_look_ ? copy_what_changed(false) : copy(from_.all());
  for (int attempts = 0; went && attempts < most_attempts; ++attempts) {
    tells_.reached(step::sealed);
    const auto bad = over_.seal(from_);
    if (!bad) return tl::unexpected(bad.error());
    if (bad->empty()) {
      tells_.reached(step::verified);
      return {};
    }
    out_.resent += bad->size();
    std::vector<std::size_t> again;
    for (const std::size_t i : from_.all()) {
      const std::uint64_t number = from_.chunks()[i].number;
      if (std::find(bad->begin(), bad->end(), number) != bad->end()) again.push_back(i);
    }
    went = copy(std::move(again));
  }
  if (!went) return tl::unexpected(went.error());
  return make_error(errc::corrupt, op, "the same chunks arrive damaged again and again", *went);
}

result<std::size_t> copying::copy(std::vector<std::size_t> which) {
  const std::uint64_t bytes = bytes_of(which);
  tells_.note([&](progress &p) { p.round_bytes = bytes; });
  round all(std::move(which));
  return copy(all, [] { return status(); });
}

// They go while the rest is looked at.
result<std::size_t> copying::copy_what_changed(bool running) {
  tells_.note([](progress &p) { p.round_bytes = 0; });
  round changed;
  auto went = copy(changed, [&] { return find_changes(changed, running); });
  if (went) out_.clean_bytes += from_.bytes() - bytes_of(changed.all());
  return went;
}

status copying::find_changes(round &into, bool running) {
  const std::vector<std::size_t> all = from_.all();
  const std::size_t at_once = std::max(least_looked_at, all.size() / 16 + 1);
  for (std::size_t at = 0; at < all.size(); at += at_once) {
    const auto some = std::span(all).subspan(at, std::min(at_once, all.size() - at));
    const auto began = clock::now();
    const auto dirty = from_.changed(some);
    looked_ += seconds_since(began);
    if (!dirty) return tl::unexpected(dirty.error());
    tells_.note([&](progress &p) { p.round_bytes += bytes_of(*dirty); });
    if (!into.add(*dirty)) return {};
    // What is looked at later is up to date for longer.
    if (running) into.await_takers(few);
  }
  into.complete();
  return {};
}

// A round: `which`, and again what did not arrive as it left.
result<std::size_t> copying::copy(round &which, const std::function<status()> &finding) {
  ++out_.rounds;
  tells_.note([&](progress &p) {
    p.round = out_.rounds;
    p.bytes = out_.bytes;
    p.round_sent = 0;
  });
  looked_ = 0;
  const auto began = clock::now();
  const auto tell = [this](std::uint64_t n, bool zeros) {
    (zeros ? out_.zero_bytes : out_.bytes_sent) += n;
    tells_.went(n, zeros);
  };
  auto bad = over_.copy(from_, which, finding, out_.rounds, tell);
  for (int attempts = 1; bad && *bad != 0 && attempts < most_attempts; ++attempts) {
    out_.resent += *bad;
    std::vector<std::size_t> again;
    for (const std::size_t i : which.all()) {
      if (!from_.chunks()[i].known) again.push_back(i);
    }
    round rest(std::move(again));
    bad = over_.copy(
        from_, rest, [] { return status(); }, out_.rounds, tell);
  }
  if (!bad) return tl::unexpected(bad.error());
  if (*bad != 0) {
    return make_error(errc::corrupt, op, "the same chunks arrive damaged again and again", *bad);
  }
  const double took = seconds_since(began);
  const std::uint64_t bytes = bytes_of(which.all());
  // Nothing is learned of the link by a round that is too short, or where looking took time.
  if (bytes >= (1 << 20) && took > 8 * looked_) rate_ = static_cast<double>(bytes) / took;
  tells_.note([&](progress &p) { p.bytes_per_second = rate_; });
  tells_.reached(step::copied);
  return which.all().size();
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
  const pause_guess guess{seconds_since(began) * share, rate_ > 0 ? left / rate_ : 0,
                          static_cast<std::uint64_t>(left)};
  tells_.note([&](progress &p) { p.expected_pause = guess.all(); });
  return guess;
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
