// The oracle: records the ranges that unfinished work accesses, and detects races with unmap, free
// and aliases.
//
// Work is unfinished while its tick is not within the host clock (timeline::known), even if a
// worker has run it. The oracle keeps one record per stream, range and direction (read or write):
// for two operations of one stream on one range, the later one decides. Memory is therefore bounded
// by the number of distinct ranges. A record is removed when the host clock passes it.
// Guarded by engine::mu unless stated otherwise. hostcuda/docs/oracle.md
#pragma once

#include <hostcuda/hostcuda.h>

#include <memory>
#include <vector>

#include "hostcuda/src/call_site.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/execution/access_record.h"
#include "hostcuda/src/execution/clock.h"
#include "hostcuda/src/memory.h"

namespace hostcuda {

// Position and origin of one operation.
struct position {
  std::shared_ptr<timeline> line;
  std::uint64_t tick;
  std::uint64_t serial;
  const vector_clock *seen;  // clock of the operations that precede it
  const char *what;
  context *ctx;
  const call_site *site;
};

// Records that the operation at `where` accesses `t`. `late`: the access is known only while the
// operation runs.
void oracle_note(const position &where, const touch &t, bool late);

// Finds unfinished accesses to `others` (the other addresses of `t`) that are not ordered before
// `where`. Reports UNORDERED_ALIAS for each if `report` is set. Returns whether there was one.
// Only records queued before `where` are compared, because for a late access the order of later
// ones is unknown. `others` is read from the memory registry before engine::mu is taken and may be
// outdated: callers check with `report` false first, read `others` again, and then report.
bool oracle_check_alias(const position &where, const touch &t,
                        const std::vector<virtual_range> &others, bool report);

// Advances the host clock: operations up to `tick` are done.
void oracle_learn(const std::shared_ptr<timeline> &line, std::uint64_t tick);
void oracle_learn(const vector_clock &clock);

// Removes the records of [at, at + bytes) that are ordered before the operation at `last`, and of
// that operation. nullptr: all records. Parts of a record outside the range stay.
//
// Not decided by what has finished: a use of the old allocation that is not ordered before its free
// is found in every schedule, or in none.
void oracle_forget(CUdeviceptr at, std::size_t bytes, const position *last);

// Removes and returns the overlapping records of unfinished work. `is_free`: returns only records
// of streams that cuMemFree does not wait for.
std::vector<record> oracle_take(CUdeviceptr at, std::size_t bytes, bool is_free);

void oracle_report(hostcuda_violation_kind kind, CUdeviceptr at, std::size_t bytes,
                   const char *first_what, const call_site &first, const char *second_what,
                   const call_site &second);

void oracle_reset();

}  // namespace hostcuda
