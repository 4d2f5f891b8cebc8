// Replays on every allocator that has a name: the same requests, every byte checked, with enough
// memory and with too little.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <utility>

#include "bench/replay/replay.h"
#include "bench/replay/simulator.h"
#include "stillmap/vmm/context.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::literals;
using namespace stillmap::replay;

constexpr std::size_t memory = 256_MiB;

// A program of several streams that uses blocks across them in order, each iteration the same.
std::string program(unsigned seed, int iterations, std::uint64_t largest, bool across = true) {
  trace_writer out("random");
  std::uint64_t next = 0;
  std::vector<std::uint64_t> kept;
  for (int i = 0; i < 8; ++i) {
    out.allocate(kept.emplace_back(next++), 3_MiB + static_cast<std::uint64_t>(i) * 1000, 0);
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    std::mt19937_64 dice(seed);
    out.iteration();
    std::vector<std::uint64_t> live;
    for (int step = 0; step < 120; ++step) {
      const auto on = static_cast<std::uint32_t>(dice() % 3);
      const std::uint64_t bytes = dice() % 3 == 0 ? dice() % largest + 1 : dice() % 5000 + 1;
      out.allocate(live.emplace_back(next++), bytes, on);
      if (across && dice() % 3 == 0) {
        const std::uint32_t other = (on + 1) % 3;
        out.wait(on, other);
        out.use(live.back(), other);
      }
      while (live.size() > 12) {
        const std::size_t at = dice() % live.size();
        out.free(live[at]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    for (const std::uint64_t id : live) out.free(id);
  }
  out.iteration();
  return out.take();
}

class ReplayTest : public device_test, public ::testing::WithParamInterface<const char *> {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped()) return;
    if (!on_hostcuda()) GTEST_SKIP() << "needs a small device with an oracle";
    become("memory=256M");
    device_.emplace(open_device());
    kind_ = *find_target(GetParam());
    const bool vmm = device_->capabilities().vmm, pools = device_->capabilities().memory_pools;
    if (!vmm && kind_->name == std::string("segments-expanding")) GTEST_SKIP() << "has no VMM";
    if (!pools && kind_->name == std::string("pool")) GTEST_SKIP() << "has no memory pools";
  }
  void TearDown() override {
    device_.reset();
    device_test::TearDown();
  }
  replay_plan plan(const std::string &text, std::optional<unsigned> iterations = std::nullopt) {
    const auto read = read_trace(text);
    EXPECT_TRUE(read) << read.error().message();
    auto p = plan_replay(*read, iterations);
    EXPECT_TRUE(p) << p.error().message();
    return *p;
  }
  replay_options options() const {
    replay_options o;
    o.kind = kind_;
    return o;
  }

  std::optional<device> device_;
  const target_kind *kind_ = nullptr;
};

TEST_P(ReplayTest, EveryByteStaysWhereItIs) {
  for (const unsigned seed : {1u, 2u}) {
    replay_options o = options();
    o.verify = seed == 1 ? check_depth::bytes : check_depth::pages;
    const std::uint64_t largest = seed == 1 ? 300'000 : 3_MiB;  // each byte, or where pages meet
    const auto r = run(*device_, plan(program(seed, 3, largest)), o);
    ASSERT_TRUE(r) << r.error().message();
    EXPECT_FALSE(r->oom) << r->where_oom;
    EXPECT_EQ(r->violations, 0u);
    EXPECT_GT(r->bytes_checked, 10000u);
  }
}

TEST_P(ReplayTest, CountsWhatItTook) {
  const replay_plan p = plan(program(5, 4, 2_MiB), 6);
  const auto r = run(*device_, p, options());
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_EQ(r->ops, p.requests);
  EXPECT_EQ(r->peak_live_bytes, p.peak_live_bytes);
  EXPECT_GE(r->peak_committed_bytes, r->peak_live_bytes);
  EXPECT_GT(r->ns_per_op, 0);
  EXPECT_GT(r->calls.total(), 0u);
  EXPECT_EQ(r->calls[driver_call::MemcpyHtoDAsync], 0u);
  EXPECT_EQ(r->host_bytes.value_or(0) != 0, kind_->name[0] == 's') << "segments know their tables";
  const bool caches = kind_->name != std::string("direct") && kind_->name != std::string("pool");
  if (caches) {  // only events, for what other streams used
    EXPECT_EQ(r->last_iteration[driver_call::MemAlloc], 0u);
    EXPECT_EQ(r->last_iteration[driver_call::MemCreate], 0u);
  } else {
    EXPECT_GT(r->last_iteration.total(), 200u);
  }
}

TEST_P(ReplayTest, TellsTheTimeOfItsRequestsWhenAsked) {
  const replay_plan p = plan(program(5, 1, 2_MiB));
  replay_options o = options();
  const auto without = run(*device_, p, o);
  ASSERT_DONE(without);
  EXPECT_FALSE(without->cpu_ns);
  o.request_times = true;
  const auto with = run(*device_, p, o);
  ASSERT_DONE(with);
  ASSERT_TRUE(with->cpu_ns);
  EXPECT_LE(with->cpu_ns->p50, with->cpu_ns->p99);
  EXPECT_LE(with->cpu_ns->p99, with->cpu_ns->p999);
  EXPECT_LE(with->cpu_ns->p999, with->cpu_ns->max);
  EXPECT_GT(with->cpu_ns->max, 0) << "what is subtracted is the least that the clock takes";
  const auto one = run(*device_, plan("# stillmap-trace v1\na,0,512,0\n"), o);
  ASSERT_DONE(one);
  ASSERT_TRUE(one->cpu_ns);
  EXPECT_EQ(one->cpu_ns->max, one->cpu_ns->p50) << "there is one request";
}

TEST_P(ReplayTest, TellsTheModelledTimeOfItsCalls) {
  const replay_plan p = plan(program(5, 2, 2_MiB));
  device_.reset();
  ASSERT_DONE(become_machine(driver(), "h200", true));
  EXPECT_NE(hostcuda_control::config().find("lazy"), std::string::npos) << "bytes are kept";
  device_.emplace(open_device());
  const auto r = run(*device_, p, options());
  ASSERT_DONE(r);
  ASSERT_TRUE(r->modelled_us);
  EXPECT_GT(*r->modelled_us, 0);
  const auto one = run(*device_, plan("# stillmap-trace v1\na,0,512,0\nf,0\ni\n"), options());
  ASSERT_DONE(one);
  ASSERT_TRUE(one->modelled_us && one->modelled_last_us);
  EXPECT_EQ(*one->modelled_last_us, *one->modelled_us) << "the last iteration is the only one";
}

// Two iterations that cost the same, or the second nothing.
TEST_P(ReplayTest, TheLastIterationIsModelledByItself) {
  const replay_plan p = plan("# stillmap-trace v1\ni\na,0,512,0\nf,0\ni\na,1,512,0\nf,1\ni\n");
  ASSERT_EQ(p.iterations, 2u);
  device_.reset();
  ASSERT_DONE(become_machine(driver(), "h200", true));
  device_.emplace(open_device());
  const auto r = run(*device_, p, options());
  ASSERT_DONE(r);
  ASSERT_TRUE(r->modelled_us && r->modelled_last_us);
  EXPECT_GT(*r->modelled_us, 0);
  EXPECT_LE(2 * *r->modelled_last_us, *r->modelled_us);
}

// The figures of a checked replay are those of the allocator, which makes the same calls.
TEST_P(ReplayTest, CheckingIsNotCounted) {
  // What segments ask of events depends on when these pass.
  const bool asks = kind_->name[0] == 's';
  const replay_plan p = plan(program(9, 2, 2_MiB, !asks), 3);
  replay_options o = options();
  const auto plain = run(*device_, p, o);
  o.verify = check_depth::pages;
  const auto checked = run(*device_, p, o);
  ASSERT_DONE(plain);
  ASSERT_DONE(checked);
  EXPECT_GT(checked->bytes_checked, 10000u);
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    const auto call = static_cast<driver_call>(i);
    if (call == driver_call::CtxSynchronize) continue;  // `direct` waits before it frees
    EXPECT_EQ(checked->calls[call], plain->calls[call]) << name_of(call);
    EXPECT_EQ(checked->last_iteration[call], plain->last_iteration[call]) << name_of(call);
  }
}

// From the third iteration on there is no request, so no time either.
TEST_P(ReplayTest, TimesAreOfTheIterationsFromTheThirdOn) {
  const std::string some = "i\na,0,512,0\nf,0\ni\na,1,512,0\nf,1\n";
  const auto warm = run(*device_, plan("# stillmap-trace v1\n" + some + "i\n"), options());
  ASSERT_DONE(warm);
  EXPECT_GT(warm->ns_per_op, 0) << "of all, if there are fewer";
  EXPECT_GT(warm->ns_per_op_mean, 0);
  EXPECT_FALSE(warm->cpu_ns);
  replay_options o = options();
  for (const bool each : {false, true}) {
    o.request_times = each;
    const auto r = run(*device_, plan("# stillmap-trace v1\n" + some + "i\ni\ni\n"), o);
    ASSERT_DONE(r);
    EXPECT_EQ(r->ns_per_op, 0);
    EXPECT_EQ(r->ns_per_op_mean, 0);
    EXPECT_FALSE(r->cpu_ns);
  }
}

TEST_P(ReplayTest, ShortMemoryIsAResultAndTheLeastIsFound) {
  // Without use across streams nothing depends on when an event passes.
  const replay_plan p = plan(program(7, 2, 6_MiB, false), 3);
  const auto ample = run(*device_, p, options());
  ASSERT_TRUE(ample && !ample->oom);
  const auto least = find_min_capacity(*device_, p, options(), memory / 2);
  ASSERT_TRUE(least) << least.error().message();
  EXPECT_GE(*least, p.peak_live_bytes);
  replay_options o = options();
  o.capacity = *least;
  const auto enough = run(*device_, p, o);
  ASSERT_TRUE(enough);
  // hostcuda's pool reuses what its threads have freed by then: another time, something else.
  if (kind_->name != std::string("pool")) {
    EXPECT_FALSE(enough->oom);
  }
  o.capacity = p.peak_live_bytes / 2;
  o.verify = check_depth::pages;
  const auto less = run(*device_, p, o);
  ASSERT_TRUE(less) << less.error().message();
  EXPECT_TRUE(less->oom);
  EXPECT_NE(less->where_oom.find("live"), std::string::npos) << less->where_oom;
  EXPECT_EQ(leftovers().find("physical"), std::string::npos);
}

TEST_P(ReplayTest, SaysHowMuchWasLiveWhereItRanOut) {
  trace_writer out;
  out.allocate(0, 32_MiB, 0);
  out.allocate(1, 8_MiB, 0);
  out.free(1);
  out.allocate(2, 4_MiB, 0);
  out.allocate(3, 200_MiB, 0);
  replay_options o = options();
  o.capacity = memory / 2;
  const auto r = run(*device_, plan(out.take()), o);
  ASSERT_TRUE(r) << r.error().message();
  ASSERT_TRUE(r->oom);
  const std::string said = "operation 5 of 6: 200 MiB on stream 0, with 36 MiB live and ";
  EXPECT_EQ(r->where_oom.substr(0, said.size()), said);
}

TEST_P(ReplayTest, MoreMemoryThanThereIsIsRefused) {
  replay_options o = options();
  o.capacity = memory * 2;
  const auto r = run(*device_, plan(program(1, 1, 1_MiB)), o);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::invalid_argument);
  EXPECT_EQ(r.error().detail().cause,
            "--capacity 512 MiB is more than the 256 MiB that are free on this device");
}

TEST_P(ReplayTest, TheLeastIsOnePageAboveTooLittle) {
  const replay_plan p = plan("# stillmap-trace v1\na,0,3145728,0\n");
  const auto least = find_min_capacity(*device_, p, options(), memory / 2);
  ASSERT_DONE(least);
  if (kind_->name[0] == 's') {
    EXPECT_EQ(*least, 20_MiB) << "a segment for middle requests";
  }
  EXPECT_EQ(*least % 2_MiB, 0u);
  replay_options o = options();
  for (const bool enough : {true, false}) {
    o.capacity = enough ? *least : *least - 2_MiB;
    const auto r = run(*device_, p, o);
    ASSERT_DONE(r);
    EXPECT_EQ(r->oom, !enough);
  }
}

TEST_P(ReplayTest, TheDriversErrorsAreReported) {
  hostcuda_control::fail(nullptr, 60, CUDA_ERROR_OPERATING_SYSTEM);
  const auto r = run(*device_, plan(program(1, 1, 1_MiB)), options());
  if (hostcuda_control::faults_fired() == 0) GTEST_SKIP() << "so many calls it does not make";
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, std::error_code(CUDA_ERROR_OPERATING_SYSTEM, cuda_category()));
}

// An allocator that hands out blocks one after the other and, at its tenth request, lets two of its
// pages change places.
class swapping_target final : public replay_target {
 public:
  explicit swapping_target(const device &d) : drv_(d.driver()), page_(d.capabilities().page_bytes) {
    physical_properties what;
    what.location = on_device(d.ordinal());
    const access_grant all{on_device(d.ordinal()), access_mode::read_write};
    begin_ = *drv_.reserve_addresses(pages * page_, 0, device_address());
    for (std::size_t i = 0; i < pages; ++i) {
      handles_.push_back(*drv_.create_physical(page_, what));
      EXPECT_TRUE(drv_.map(begin_ + i * page_, page_, handles_[i]));
    }
    EXPECT_TRUE(drv_.set_access({begin_, pages * page_}, &all, 1));
    swap_ = [this, all] {
      EXPECT_TRUE(drv_.synchronize_context());
      EXPECT_TRUE(drv_.unmap({begin_ + first * page_, 2 * page_}));
      EXPECT_TRUE(drv_.map(begin_ + first * page_, page_, handles_[first + 1]));
      EXPECT_TRUE(drv_.map(begin_ + (first + 1) * page_, page_, handles_[first]));
      EXPECT_TRUE(drv_.set_access({begin_ + first * page_, 2 * page_}, &all, 1));
    };
  }
  ~swapping_target() override {
    EXPECT_TRUE(drv_.synchronize_context());
    EXPECT_TRUE(drv_.unmap({begin_, pages * page_}));
    for (const physical_handle h : handles_) EXPECT_TRUE(drv_.release_physical(h));
    EXPECT_TRUE(drv_.free_addresses({begin_, pages * page_}));
  }
  result<void *> allocate(std::size_t bytes, stream_ref) override {
    if (++requests_ == 10) swap_();
    void *const at = (begin_ + used_).pointer();
    used_ += round_up(bytes, 512);
    return at;
  }
  status free(void *) override { return {}; }
  status record_use(void *, stream_ref) override { return {}; }
  std::uint64_t committed_bytes() const override { return pages * page_; }
  std::uint64_t peak_committed_bytes() const override { return pages * page_; }

  static constexpr std::size_t pages = 32;
  static inline std::size_t first = 0;  // of the two pages

 private:
  const driver &drv_;
  std::size_t page_, used_ = 0;
  int requests_ = 0;
  device_address begin_;
  std::vector<physical_handle> handles_;
  std::function<void()> swap_;
};

// Never frees anything.
class leaking_target final : public replay_target {
 public:
  explicit leaking_target(const device &d) : drv_(d.driver()) {}
  result<void *> allocate(std::size_t bytes, stream_ref) override {
    const auto at = drv_.allocate(bytes);
    if (!at) return tl::unexpected<error>(at.error());
    leaked.push_back(*at);
    return at->pointer();
  }
  status free(void *) override { return {}; }
  status record_use(void *, stream_ref) override { return {}; }
  std::uint64_t committed_bytes() const override { return 0; }
  std::uint64_t peak_committed_bytes() const override { return 0; }

  static inline std::vector<device_address> leaked;

 private:
  const driver &drv_;
};

TEST_F(device_test, AnAllocatorThatLeavesMemoryBehindIsNamed) {
  if (!on_hostcuda()) GTEST_SKIP() << "needs to know how much memory is in use";
  const device d = open_device();
  const target_kind kind{
      "leaking", "", true,
      [](const device &on, const target_options &) -> result<std::unique_ptr<replay_target>> {
        return std::make_unique<leaking_target>(on);
      }};
  replay_options o;
  o.kind = &kind;
  const auto plan =
      plan_replay(*read_trace("# stillmap-trace v1\na,0,6291456,0\nf,0\n"), std::nullopt);
  const auto r = run(d, *plan, o);
  const context_guard guard(d.driver(), d.context());
  for (const device_address at : std::exchange(leaking_target::leaked, {})) {
    EXPECT_TRUE(d.driver().free(at));
  }
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, errc::corrupt);
  EXPECT_EQ(r.error().detail().cause, "'leaking' left 6 MiB of device memory behind");
}

TEST_F(device_test, AMachineThatIsNotKnownIsRefused) {
  STILLMAP_NEEDS_HOSTCUDA();
  const status unknown = become_machine(driver(), "no-such-gpu", true);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, errc::invalid_argument);
  EXPECT_NE(unknown.error().detail().cause.find("hostcuda does not know the machine"),
            std::string::npos);
  EXPECT_NE(unknown.error().detail().cause.find("profile=no-such-gpu"), std::string::npos);
  become("profile=h200");
}

// Whatever lies in the two pages: the middle of one block, two blocks, or many small ones.
TEST_F(device_test, AWrongRemapIsAWrongByte) {
  if (!on_hostcuda()) GTEST_SKIP() << "needs a small device";
  become("memory=256M,lazy");
  const device d = open_device();
  if (!d.capabilities().vmm) GTEST_SKIP() << "this device has no pages to swap";
  const target_kind kind{
      "swapping", "", true,
      [](const device &on, const target_options &) -> result<std::unique_ptr<replay_target>> {
        return std::make_unique<swapping_target>(on);
      }};
  std::string text = "# stillmap-trace v1\n";
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t bytes = i < 3 ? 9_MiB : i < 6 ? 700'000 : 4_MiB;
    text += "a," + std::to_string(i) + "," + std::to_string(bytes) + ",0\n";
  }
  const auto plan = plan_replay(*read_trace(text), std::nullopt);
  ASSERT_TRUE(plan);
  for (swapping_target::first = 0; swapping_target::first < 18; ++swapping_target::first) {
    replay_options o;
    o.kind = &kind;
    o.verify = check_depth::pages;
    const context_guard guard(d.driver(), d.context());
    const auto r = run(d, *plan, o);
    ASSERT_FALSE(r) << swapping_target::first;
    EXPECT_NE(r.error().message().find("a wrong byte"), std::string::npos) << r.error().message();
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReplayTest,
                         ::testing::Values("segments", "segments-expanding", "pool", "direct"),
                         [](const auto &name) {
                           std::string text = name.param;
                           for (char &c : text) c = c == '-' ? '_' : c;
                           return text;
                         });

}  // namespace
}  // namespace stillmap::testing
