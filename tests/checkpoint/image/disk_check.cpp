#include "tests/checkpoint/image/disk_check.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/support/effort.h"

namespace stillmap::image {
namespace {

struct disk_outcomes {
  std::size_t crashes = 0, old_ones = 0, new_ones = 0, wrong = 0;
};

// Crashes in several ways now, and looks what is there.
void crash(const checkpoint::simulated_disk &disk, const disk_scenario &s, bool succeeded,
           std::mt19937 &random, disk_outcomes &out) {
  for (int way = 0; way < 12; ++way) {
    const auto left = way == 0   ? checkpoint::left_by_crash::nothing
                      : way == 1 ? checkpoint::left_by_crash::everything
                                 : checkpoint::left_by_crash::some;
    const disk_state found = s.find(*disk.after_crash(left, random));
    ++out.crashes;
    out.old_ones += found == disk_state::old_one;
    out.new_ones += found == disk_state::new_one;
    out.wrong += found == disk_state::mixture || (succeeded && found != disk_state::new_one);
  }
}

// The power goes at each change; with `as`, on a disk that does something else as well.
disk_outcomes each_change(const disk_scenario &s,
                          const std::function<void(checkpoint::simulated_disk &)> &as = {}) {
  disk_outcomes out;
  std::mt19937 random(1);
  for (std::size_t n = 0;; ++n) {
    checkpoint::simulated_disk disk;
    s.prepare(disk);
    if (as) as(disk);
    disk.lose_power_at(n);
    const bool succeeded = s.write(disk);
    crash(disk, s, succeeded, random, out);
    if (disk.changes() <= n) return out;
  }
}

}  // namespace

void check_on_disk(const disk_scenario &s) {
  SCOPED_TRACE(s.what);
  const disk_outcomes lost = each_change(s);
  EXPECT_EQ(lost.wrong, 0u);
  EXPECT_GT(lost.old_ones, 10u);
  EXPECT_GT(lost.new_ones, 5u);
  std::size_t syncs = 0;
  {
    checkpoint::simulated_disk disk;
    s.prepare(disk);
    disk.ignore_sync_at(checkpoint::simulated_disk::never);
    EXPECT_TRUE(s.write(disk));
    syncs = disk.syncs();
  }
  std::size_t shown = 0, after_failures = 0;
  const std::size_t stride = stillmap::testing::sweep_stride(4);
  for (std::size_t n = 0; n < syncs; n += stride) {
    const disk_outcomes failed =
        each_change(s, [&](checkpoint::simulated_disk &d) { d.fail_sync_at(n); });
    EXPECT_EQ(failed.wrong, 0u) << "after sync " << n << " has failed";
    after_failures += failed.crashes;
    shown += each_change(s, [&](checkpoint::simulated_disk &d) { d.ignore_sync_at(n); }).wrong > 0;
  }
  if (stride == 1) {
    EXPECT_GE(shown, syncs - s.redundant_syncs) << "of " << syncs;
  }
  std::printf(
      "note: %s on a disk that loses what was not synced: %zu crashes, %zu more after a sync "
      "failed; %zu mixtures; %zu of %zu programs without one sync caught\n",
      s.what, lost.crashes, after_failures, lost.wrong, shown, syncs);
}

}  // namespace stillmap::image
