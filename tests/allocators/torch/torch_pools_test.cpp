// What PyTorch does for CUDA graphs and MemPools: memory of a pool stays in place and serves nothing
// else until the pool is released.
#include <atomic>
#include <vector>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"
#include "tests/allocators/torch/plugin.h"
#include "tests/support/captured_graph.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {
namespace {

using namespace literals;

constexpr plugin::pool_id graphs{0, 1}, others{0, 2};

class torch_pools : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::testing::internal::InDeathTestChild()) return;
    if (!hostcuda_control::available()) GTEST_SKIP() << "needs hostcuda's switches";
  }
};

auto only(stream_handle s) {
  return [s](stream_handle asked) { return asked == s; };
}

TEST_F(torch_pools, free_memory_of_a_pool_serves_only_the_pool) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = open();
    const stream own = new_stream(d);
    const stream_handle s = own.get();
    p.begin_pool(0, graphs, only(s));
    void *const captured = p.malloc(4_MiB, 0, s);
    p.free(captured, 4_MiB, 0, s);
    MUST(p.malloc(4_MiB, 0, s) == captured, "the pool uses its memory again");
    p.free(captured, 4_MiB, 0, s);
    p.end_pool(0, graphs);

    void *const outside = p.malloc(4_MiB, 0, s);
    MUST(outside != captured, "the memory is reserved to the pool");
    p.empty_cache();
    p.begin_pool(0, graphs, only(s));
    MUST(p.malloc(4_MiB, 0, s) == captured, "a second graph shares the memory of the first");
    p.free(captured, 4_MiB, 0, s);
    p.end_pool(0, graphs);

    p.release_pool(0, graphs);
    const long long before = p.figure("committed_bytes");
    p.empty_cache();
    MUST(p.figure("committed_bytes") == before, "the second graph still holds the pool");
    p.release_pool(0, graphs);
    p.empty_cache();
    MUST(p.figure("committed_bytes") <= before - 4 * 1024 * 1024, "nothing holds it");
    p.free(outside, 4_MiB, 0, s);
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_pools, other_streams_stay_outside_until_they_join) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = open();
    const stream first = new_stream(d), second = new_stream(d);
    bool joined = false;
    p.begin_pool(0, graphs, [&](stream_handle asked) {
      return asked == first.get() || (joined && asked == second.get());
    });
    void *const outside = p.malloc(4_MiB, 0, second.get());
    p.free(outside, 4_MiB, 0, second.get());
    joined = true;
    void *const inside = p.malloc(4_MiB, 0, second.get());
    MUST(inside != outside, "from now on it takes part in the capture");
    p.free(inside, 4_MiB, 0, second.get());
    p.end_pool(0, graphs);
    MUST(p.malloc(4_MiB, 0, second.get()) == outside, "it has its own memory again");
    p.release_pool(0, graphs);
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_pools, a_graph_replays_on_memory_that_was_freed_while_it_was_captured) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = open();
    const stream own = new_stream(d);
    const stream_handle s = own.get();
    // As PyTorch does: the pool, then the capture.
    std::atomic<bool> capturing{true};
    p.begin_pool(0, graphs, [&](stream_handle asked) { return capturing && asked == s; });
    captured_graph graph(d, own);
    void *const result = p.malloc(2_MiB, 0, s);
    void *const temporary = p.malloc(2_MiB, 0, s);
    graph.fill(temporary, 7, 2_MiB, own);
    graph.copy(result, temporary, 2_MiB, own);
    p.free(temporary, 2_MiB, 0, s);
    MUST(graph.end(), "nothing spoiled the capture");
    capturing = false;
    p.end_pool(0, graphs);

    // Everything else of the device is in use, and full of something else.
    std::vector<void *> rest;
    while (void *const block = p.try_malloc(8_MiB, 0, s)) {
      rest.push_back(block);
      fill(d, block, 9, 8_MiB, s);
    }
    MUST(rest.size() > 4, "the pool is small");
    graph.launch(own);
    MUST(all_are(d, result, 7, 2_MiB, s), "the graph did its work");
    for (void *const block : rest) {
      MUST(all_are(d, block, 9, 8_MiB, s), "it writes into its own memory only");
    }
    MUST(hostcuda_control::violations().empty(),
         std::to_string(hostcuda_control::violations().size()));
    p.release_pool(0, graphs);
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_pools, wrong_calls_are_reported) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = open();
    p.end_pool(0, graphs);  // the device was never used
    MUST(p.why().empty(), p.why());
    p.begin_pool(0, graphs, [](stream_handle) { return true; });
    p.release_pool(0, others);
    MUST(p.why().find("the pool does not exist or was released") != std::string::npos, p.why());
    p.end_pool(0, others);
    MUST(p.why().find("no allocation to this pool is in progress") != std::string::npos, p.why());
    p.end_pool(0, graphs);
    p.release_pool(0, graphs);
    try {
      p.begin_pool(1000, graphs, [](stream_handle) { return true; });
    } catch (const std::exception &e) {
      MUST(std::string(e.what()).find("there is no such device") != std::string::npos, e.what());
      return;
    }
    MUST(false, "there is no such device");
  };
  IN_OWN_PROCESS(scenario, "stillmap_release_pool.*\n.*stillmap_end_allocate_to_pool");
}

}  // namespace
}  // namespace stillmap::testing
