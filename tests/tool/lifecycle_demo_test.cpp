// A task that comes through three processes.
#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

using journey = command_test;

TEST_F(journey, arrives_whole_or_says_why_it_cannot_begin) {
  const bool can = [&] {
    const device d = open_device();
    return d.capabilities().vmm && d.capabilities().posix_fd_export;
  }();
  const ran r = run("journey");
  if (!can) {
    EXPECT_EQ(r.status, 3) << r.out << r.err;
    EXPECT_NE(r.err.find("has no pages that another process can have"), std::string::npos) << r.err;
    return;
  }
  EXPECT_EQ(r.status, 0) << r.out << r.err;
  for (const char *const says :
       {"begins", "saved", "restored in another process", "handed", " 0 bytes copied", "moved",
        "paused for", "stillmap: ok: one task, three processes"}) {
    EXPECT_NE(r.out.find(says), std::string::npos) << says << " in:\n" << r.out << r.err;
  }
}

TEST_F(journey, has_no_other_stations) {
  const ran r = run("journey --part moon --folder '" + folder_.string() + "'");
  EXPECT_EQ(r.status, 2) << r.err;
  EXPECT_NE(r.err.find("no station 'moon'"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace stillmap::testing
