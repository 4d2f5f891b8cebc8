// Vector clocks: one tick per operation and stream. All of it is guarded by engine::mu.
//
// A clock leaves out what the host already knows to be done, because host knowledge only grows and
// every comparison looks at it first. That keeps clocks at the handful of streams really in flight.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

namespace hostcuda {

struct stream;

struct record;  // access_record.h
using record_list = std::list<record>;

// A stream's identity in time. Outlives the stream while any clock or record speaks of it.
struct timeline {
  explicit timeline(std::uint64_t id);
  ~timeline();

  const std::uint64_t uid;
  std::uint64_t queued = 0;    // ticks handed out
  std::uint64_t finished = 0;  // operations 1..finished have run (or were dropped)
  std::uint64_t known = 0;     // the host clock: the program knows that 1..known are done
  bool blocking = true;        // its stream synchronises with the legacy default stream

  std::condition_variable done;  // `finished` moved
  unsigned waiters = 0;
  std::vector<std::shared_ptr<stream>> dependents;  // to be woken when `finished` moves

  record_list records;  // what the oracle keeps of it, oldest first
};

using instant = std::pair<std::shared_ptr<timeline>, std::uint64_t>;

class vector_clock {
 public:
  void join(const std::shared_ptr<timeline> &line, std::uint64_t tick);
  void join(const vector_clock &other);

  // Whether operation `tick` of `line` comes before whatever carries this clock.
  bool covers(const timeline &line, std::uint64_t tick) const;

  const std::vector<instant> &entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  void clear() { entries_.clear(); }

 private:
  void forget_known();
  std::vector<instant> entries_;  // by uid
};

}  // namespace hostcuda
