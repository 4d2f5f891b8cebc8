// Vector clocks with one tick per operation and stream. Guarded by engine::mu.
//
// A clock omits entries that are within the host clock (`timeline::known`): the host clock only
// grows, and each comparison checks it first. Clocks therefore contain only streams with unfinished
// work.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace hostcuda {

struct stream;

struct record;  // access_record.h
using record_list = std::list<record>;

// Progress of one stream. It outlives the stream while a clock or record refers to it.
struct timeline {
  explicit timeline(std::uint64_t id);
  ~timeline();

  const std::uint64_t uid;
  std::uint64_t queued = 0;    // number of operations queued
  std::uint64_t finished = 0;  // operations 1..finished have run or were dropped
  std::uint64_t known = 0;     // host clock: a wait or query has shown that 1..known are done
  bool blocking = true;        // the stream synchronises with the legacy default stream

  // What waits for `finished` to reach a tick. Only what the tick releases is woken: hundreds of
  // streams may wait for different operations of the legacy stream.
  std::condition_variable done;
  std::multiset<std::uint64_t> waiters;  // ticks of the threads that wait for `done`
  std::multimap<std::uint64_t, std::shared_ptr<stream>> dependents;

  record_list records;  // the oracle's access records, oldest first
};

using instant = std::pair<std::shared_ptr<timeline>, std::uint64_t>;

class vector_clock {
 public:
  void join(const std::shared_ptr<timeline> &line, std::uint64_t tick);
  void join(const vector_clock &other);

  // Whether operation `tick` of `line` precedes the owner of this clock.
  bool covers(const timeline &line, std::uint64_t tick) const;

  const std::vector<instant> &entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  void clear() { entries_.clear(); }

 private:
  void forget_known();
  std::vector<instant> entries_;  // by uid
};

}  // namespace hostcuda
