// stillmap demo lifecycle: a task that moves through three processes.
#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

using lifecycle_demo = command_test;

TEST_F(lifecycle_demo, completes_or_reports_what_the_device_lacks) {
  const bool can = [&] {
    const device d = open_device();
    return d.capabilities().vmm && d.capabilities().posix_fd_export;
  }();
  const ran r = run("demo lifecycle");
  if (!can) {
    EXPECT_EQ(r.status, 5) << r.out << r.err;
    EXPECT_NE(r.err.find("has no pages that can be exported to another process"), std::string::npos)
        << r.err;
    return;
  }
  EXPECT_EQ(r.status, 0) << r.out << r.err;
  for (const char *const says :
       {"starts", "saved", "restored in another process", "handed", " 0 bytes copied", "migrated",
        "stopped for", "stillmap: ok: one task, three processes"}) {
    EXPECT_NE(r.out.find(says), std::string::npos) << says << " in:\n" << r.out << r.err;
  }
}

TEST_F(lifecycle_demo, has_no_other_parts) {
  const ran r = run("demo lifecycle --part moon --folder '" + folder_.string() + "'");
  EXPECT_EQ(r.status, 2) << r.err;
  EXPECT_NE(r.err.find("no part 'moon'"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace stillmap::testing
