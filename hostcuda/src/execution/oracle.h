// The oracle: which ranges unfinished work touches, and whether an unmap or an alias races it.
//
// "Unfinished" means: not within the host clock (timeline::known), whatever the workers have done.
// Kept: one record per (stream, range, read or write), because of two operations of one stream on
// the same range the later is done no earlier, so it alone decides. Memory is therefore bounded by
// the number of distinct ranges, not of operations; a record goes when the host clock passes it.
// Everything here is guarded by engine::mu unless said. docs/hostcuda.md#the-oracle
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

// Where one operation stands.
struct position {
  std::shared_ptr<timeline> line;
  std::uint64_t tick;
  std::uint64_t serial;
  const vector_clock *seen;  // what is ordered before it
  const char *what;
  context *ctx;
  const call_site *site;
};

// Remembers that the operation at `where` touches `t`. `late`: it is found out while it runs.
void oracle_note(const position &where, const touch &t, bool late);

// Records UNORDERED_ALIAS for each unfinished access to `others` (the other addresses of `t`) that
// is not ordered before `where`. Only records queued before `where` are looked at: for a late
// access nothing says how those queued after it are ordered. Returns whether there was one.
// `others` come from the books before the engine's lock is taken: by then an address among them may
// show other memory. So a suspicion (`report` false) is judged again with `others` asked for anew.
bool oracle_check_alias(const position &where, const touch &t,
                        const std::vector<virtual_range> &others, bool report);

// The host has learnt that operations up to `tick` are done.
void oracle_learn(const std::shared_ptr<timeline> &line, std::uint64_t tick);
void oracle_learn(const vector_clock &clock);

// Removes and returns the records of unfinished work that overlap. With `is_free` only those of
// streams that cuMemFree does not wait for.
std::vector<record> oracle_take(CUdeviceptr at, std::size_t bytes, bool is_free);

void oracle_report(hostcuda_violation_kind kind, CUdeviceptr at, std::size_t bytes,
                   const char *first_what, const call_site &first, const char *second_what,
                   const call_site &second);

void oracle_reset();

}  // namespace hostcuda
