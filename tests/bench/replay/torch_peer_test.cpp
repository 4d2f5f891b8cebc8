// PyTorch's allocator as a peer: the C interface, by a library with nothing of PyTorch behind it; and
// that the compared segments do what PyTorch's do, where STILLMAP_TORCH_PEER names the real library.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "bench/replay/replay.h"
#include "bench/replay/trace_file.h"
#include "stillmap/vmm/context.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::literals;
using namespace stillmap::replay;

constexpr const char *peer_name = "STILLMAP_TORCH_PEER";

std::string fake_peer() {
#ifdef STILLMAP_FAKE_TORCH_PEER_BUILT
  return STILLMAP_FAKE_TORCH_PEER_BUILT;
#else
  return std::filesystem::absolute("tests/libfake_torch_peer.so").string();
#endif
}

// A variable of the environment while the object lives.
class scoped_variable {
 public:
  scoped_variable(const char *name, const std::string &value) : name_(name) {
    if (const char *const now = std::getenv(name)) before_ = now;
    ::setenv(name, value.c_str(), 1);
  }
  scoped_variable(const scoped_variable &) = delete;
  scoped_variable &operator=(const scoped_variable &) = delete;
  ~scoped_variable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char *name_;
  std::optional<std::string> before_;
};

class torch_peer_test : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!std::filesystem::exists(fake_peer())) GTEST_SKIP() << "the library of the tests is absent";
    peer_.emplace(peer_name, fake_peer());
  }

  result<std::unique_ptr<replay_target>> make(const char *kind, const target_options &o = {}) {
    return (*find_target(kind))->make(dev(), o);
  }
  // The cause that make() gives for a library that it does not take.
  std::string refusal() {
    const auto made = make("torch");
    if (made) return "taken";
    EXPECT_TRUE(made.error().is(errc::not_supported)) << made.error().message();
    return made.error().detail().cause;
  }

  std::optional<scoped_variable> peer_;
};

TEST_F(torch_peer_test, its_blocks_are_the_librarys) {
  const context_guard guard(driver(), dev().context());
  const stream s = make_stream();
  const auto made = make("torch");
  ASSERT_TRUE(made) << made.error().message();
  replay_target &torch = **made;
  const auto a = torch.allocate(3_MiB, s), b = torch.allocate(1_MiB, s);
  ASSERT_TRUE(a && b);
  EXPECT_TRUE(torch.record_use(*a, s));
  EXPECT_EQ(torch.committed_bytes(), 4_MiB);
  EXPECT_TRUE(torch.free(*a));
  EXPECT_TRUE(torch.free(*b));
  EXPECT_EQ(torch.committed_bytes(), 0u);
  EXPECT_EQ(torch.peak_committed_bytes(), 4_MiB);
  EXPECT_EQ(torch.retries(), 3u);
}

TEST_F(torch_peer_test, what_the_library_says_is_in_the_error) {
  const context_guard guard(driver(), dev().context());
  const stream s = make_stream();
  const auto made = make("torch");
  ASSERT_TRUE(made) << made.error().message();
  int none = 0;
  const status freed = (*made)->free(&none), used = (*made)->record_use(&none, s);
  EXPECT_TRUE(fails_with(freed, errc::invalid_argument, "torch::free"));
  EXPECT_EQ(freed.error().detail().cause, "no such block");
  EXPECT_TRUE(fails_with(used, errc::invalid_argument, "torch::record_use"));
  const auto no = (*made)->allocate(std::size_t{1} << 50, s);
  EXPECT_TRUE(fails_with(outcome(no), errc::out_of_memory, "torch::allocate", 1ull << 50, 0));
  EXPECT_EQ(no.error().detail().cause, "CUDA out of memory");
}

TEST_F(torch_peer_test, settings_are_in_pytorchs_words) {
  target_options o;
  o.max_split_size = 1_MiB;
  o.roundup_power2_divisions = 4;
  const auto no = make("torch", o);
  ASSERT_FALSE(no);
  EXPECT_TRUE(fails_with(outcome(no), errc::invalid_argument, "torch::open"));
  EXPECT_EQ(no.error().detail().cause, "max_split_size_mb is too small");
  STILLMAP_NEEDS_VMM();
  const auto expanding = make("torch-expanding");
  ASSERT_TRUE(expanding) << expanding.error().message();
  EXPECT_EQ((*expanding)->retries(), 7u);
}

TEST_F(torch_peer_test, a_library_that_cannot_be_used_is_refused_with_a_reason) {
  {
    const scoped_variable unset(peer_name, "");
    EXPECT_EQ(refusal(),
              "STILLMAP_TORCH_PEER is not set: it names the library that tools/torch_peer/build "
              "makes of an installed PyTorch");
  }
  {
    const scoped_variable absent(peer_name, "/nowhere/peer.so");
    EXPECT_NE(refusal().find("STILLMAP_TORCH_PEER=/nowhere/peer.so cannot be loaded"),
              std::string::npos);
  }
  {
    const scoped_variable other(peer_name, "libm.so.6");
    EXPECT_NE(refusal().find("has no function stillmap_torch_peer_table"), std::string::npos);
  }
  const scoped_variable old("STILLMAP_FAKE_TORCH_PEER", "old");
  EXPECT_NE(refusal().find("has version 0 of the interface, this program 1: run "
                           "tools/torch_peer/build again"),
            std::string::npos);
}

TEST_F(torch_peer_test, a_replay_counts_the_calls_that_the_library_makes) {
  STILLMAP_NEEDS_HOSTCUDA();
  const auto read = read_trace(
      "# stillmap-trace v1\na,0,2097152,0\na,1,4194304,0\nf,0\na,2,2097152,0\nf,1\nf,2\n");
  ASSERT_TRUE(read);
  const auto plan = plan_replay(*read, std::nullopt);
  ASSERT_TRUE(plan);
  replay_options o;
  o.kind = *find_target("torch");
  const auto r = run(dev(), *plan, o);
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_EQ(r->calls[driver_call::MemAlloc], 3u);
  EXPECT_EQ(r->calls[driver_call::MemFree], 3u);
  EXPECT_EQ(r->calls[driver_call::StreamCreate], 0u) << "that is the replay's";
  EXPECT_EQ(r->peak_committed_bytes, 6_MiB);
  EXPECT_FALSE(r->oom);
  o.capacity = 4_MiB;
  const auto little = run(dev(), *plan, o);
  ASSERT_TRUE(little) << little.error().message();
  EXPECT_TRUE(little->oom);
}

// The real library, in memory that is ample and in less.
class segments_beside_torch_test : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const char *const peer = std::getenv(peer_name);
    if (peer == nullptr || *peer == '\0') {
      GTEST_SKIP() << "STILLMAP_TORCH_PEER names no library made by tools/torch_peer/build";
    }
    if (!on_hostcuda()) GTEST_SKIP() << "needs a smaller device";
  }
};

TEST_F(segments_beside_torch_test, they_hold_and_run_out_alike) {
  std::string text = "# stillmap-trace v1\n";
  std::mt19937_64 dice(1);
  std::vector<int> live;
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t most = 1ull << (10 + dice() % 15);
    text += "a," + std::to_string(i) + "," + std::to_string(dice() % most + 1) + "," +
            std::to_string(dice() % 2) + "\n";
    live.push_back(i);
    while (live.size() > 40) {
      const std::size_t at = dice() % live.size();
      text += "f," + std::to_string(live[at]) + "\n";
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  const auto plan = plan_replay(*read_trace(text), std::nullopt);
  ASSERT_TRUE(plan);
  std::vector<std::pair<const char *, const char *>> pairs = {{"segments", "torch"}};
  if (dev().capabilities().vmm) pairs.emplace_back("segments-expanding", "torch-expanding");
  for (const auto &[ours, theirs] : pairs) {
    for (const std::uint64_t percent : {0, 180, 150}) {  // of the peak of live bytes; 0: ample
      SCOPED_TRACE(std::string(theirs) + " " + std::to_string(percent));
      replay_options o;
      if (percent != 0) {
        o.capacity = plan->peak_live_bytes * percent / 100 / (2_MiB) * (2_MiB);
        if (*o.capacity > dev().total_memory().bytes()) continue;
      }
      o.kind = *find_target(ours);
      const auto mine = run(dev(), *plan, o);
      o.kind = *find_target(theirs);
      const auto real = run(dev(), *plan, o);
      ASSERT_TRUE(mine) << mine.error().message();
      ASSERT_TRUE(real) << real.error().message();
      EXPECT_EQ(mine->peak_committed_bytes, real->peak_committed_bytes);
      EXPECT_EQ(mine->oom, real->oom);
      EXPECT_EQ(mine->where_oom, real->where_oom);
      EXPECT_EQ(mine->retries, real->retries);
      for (const auto call : {driver_call::MemFree, driver_call::MemMap, driver_call::MemUnmap,
                              driver_call::MemSetAccess, driver_call::MemAddressReserve}) {
        EXPECT_EQ(mine->calls[call], real->calls[call]) << name_of(call);
      }
    }
  }
}

}  // namespace
}  // namespace stillmap::testing
