// Runs every operation with each of its host allocations failing once, and with all from there on
// failing: it must return out_of_memory, leave everything unchanged, succeed when repeated, and leak
// nothing. What an operation has made is then destroyed without any host memory.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>

#include "tests/support/effort.h"
#include "tests/support/host_memory.h"
#include "tests/system/fault/fixture.h"

namespace stillmap::testing {
namespace {

// The host's memory does not depend on the machine: two of them will do, one of them without VMM.
// Sanitizers slow it down too much, except the address sanitizer, which sees what leaks.
std::vector<operation> swept() {
  const char *const machine = std::getenv("HOSTCUDA");
  const std::string_view config = machine != nullptr ? machine : "";
  if (sanitizer() == "thread" || (config.find("profile=h200") == std::string_view::npos &&
                                  config.find("profile=vgpu-no-vmm") == std::string_view::npos)) {
    return {};
  }
  std::vector<operation> out = operations();
  // Its way back resumes memory, which takes some; without any, it says that resume() is to be called.
  // tests/checkpoint/process/host_memory_test.cpp
  std::erase_if(out, [](const operation &o) { return o.name == "process prepare"; });
  return out;
}

struct host_totals {
  std::size_t operations = 0, points = 0, on = 0, survived = 0, destroyed = 0;
  bool failed = false;
};
host_totals &host_all() {
  static host_totals t;
  return t;
}

class host_report final : public ::testing::Environment {
  void TearDown() override {
    const host_totals &t = host_all();
    if (t.operations == 0) return;
    std::printf(
        "note: host allocation sweep on %s: %zu (operation, allocation) points failed once and %zu "
        "from there on over %zu operations (%zu survived); %zu times all was destroyed without "
        "host memory; %s\n",
        simulated_profile().c_str(), t.points, t.on, t.operations, t.survived, t.destroyed,
        t.failed ? "SEE ITS LOG" : "no object changed, nothing leaked");
  }
};
[[maybe_unused]] ::testing::Environment *const host_reporting =
    ::testing::AddGlobalTestEnvironment(new host_report);

class host_memory_sweep : public operation_sweep {
 protected:
  void TearDown() override {
    if (HasFailure()) host_all().failed = true;
    operation_sweep::TearDown();
  }

  // Sets `nth` to the allocation that failed. False: the operation makes no such one.
  bool fail_from(std::uint64_t &nth, bool all_after) {
    SCOPED_TRACE(op().name + ", host allocation #" + std::to_string(nth) +
                 (all_after ? " and all after it" : ""));
    std::unique_ptr<bench> w = set();
    const std::uint64_t told = background_error_count();
    status ran;
    bool escaped = false, happened = false;
    {
      fail_host_allocation failing(nth, all_after);
      try {
        ran = op().run(*w);
      } catch (const std::bad_alloc &) {
        escaped = true;
      }
      failing.stop();
      happened = failing.happened();
      if (happened) nth = failing.failed_at();
    }
    EXPECT_FALSE(escaped) << "the exception left the operation";
    EXPECT_EQ(background_error_count(), told) << "the sink was told";
    if (!happened) {
      EXPECT_TRUE(ran) << ran.error().message();
      drop(w);
      return false;
    }
    if (ran) {
      ++host_all().survived;
    } else {
      EXPECT_TRUE(ran.error().is(errc::out_of_memory)) << ran.error().message();
      EXPECT_EQ(ran.error().code, std::errc::not_enough_memory) << ran.error().message();
      EXPECT_TRUE(names_what_failed(op(), ran.error()));
      EXPECT_EQ(w->observe(), before_) << "after " << ran.error().message();
      const status again = op().run(*w);
      EXPECT_TRUE(again) << "tried again: " << (again ? "" : again.error().message());
    }
    if (op().compare_after) {
      EXPECT_EQ(w->observe(), after_) << "in the end";
    }
    drop(w);
    if (counted() == baseline_) return true;
    ADD_FAILURE() << "leaked:\n" << counted() << baseline_;
    start();
    return true;
  }

  // Destroys what there is before the operation or after it, and the device.
  void destroy(bool run) {
    SCOPED_TRACE(op().name + (run ? ", destroyed after it" : ", destroyed before it"));
    std::unique_ptr<bench> w = set();
    if (run) {
      EXPECT_TRUE(op().run(*w));
    }
    w->let_pass();
    const std::uint64_t told = background_error_count();
    {
      const fail_host_allocation failing(0, true);
      w->let_go();
      EXPECT_FALSE(failing.happened()) << "destroying something needs host memory";
    }
    drop(w);
    EXPECT_EQ(counted(), baseline_);
    {
      const fail_host_allocation failing(0, true);
      device_.reset();
      EXPECT_FALSE(failing.happened()) << "destroying the device needs host memory";
    }
    EXPECT_EQ(background_error_count(), told) << "the sink was told";
    start();
    ++host_all().destroyed;
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(host_memory_sweep);

TEST_P(host_memory_sweep, every_host_allocation_failing) {
  learn();
  ++host_all().operations;
  const std::uint64_t step = sanitizer().empty() ? 1 : 9;
  for (const bool all_after : {false, true}) {
    for (std::uint64_t nth = 0; fail_from(nth, all_after); nth += step) {
      ++(all_after ? host_all().on : host_all().points);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(host_memory_sweep, destroying_takes_none) {
  destroy(false);
  destroy(true);
}

INSTANTIATE_TEST_SUITE_P(of, host_memory_sweep, ::testing::ValuesIn(swept()), case_name);

}  // namespace
}  // namespace stillmap::testing
