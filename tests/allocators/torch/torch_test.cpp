// The C functions that PyTorch calls: memory on any device, from any thread, without a current
// context, and a readable error on failure.
#include <array>
#include <barrier>
#include <mutex>
#include <random>
#include <thread>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"
#include "tests/allocators/torch/plugin.h"
#include "tests/support/hostcuda_control.h"
#include "tests/support/stream_gate.h"

namespace stillmap::testing {
namespace {

using namespace literals;

class torch_plugin : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::testing::internal::InDeathTestChild()) return;
    if (!hostcuda_control::available()) GTEST_SKIP() << "needs hostcuda's switches";
  }
};

void *current_context(const device &d) {
  const auto c = d.driver().current_context();
  MUST(c, c.error().message());
  return *c;
}
std::size_t violations() {
  return hostcuda_control::violations().size();
}
std::string thrown(const plugin &p, ssize_t bytes, int ordinal = 0, stream_handle s = nullptr) {
  try {
    p.malloc(bytes, ordinal, s);
  } catch (const std::exception &e) {
    return e.what();
  }
  return "";
}
bool has(const std::string &text, const char *part) {
  return text.find(part) != std::string::npos;
}

TEST_F(torch_plugin, leaves_no_context_current_and_finds_none_there) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = open();
    MUST(current_context(d) == nullptr, "before");
    void *const block = p.malloc(3 << 20, 0, nullptr);
    MUST(block != nullptr, p.why());
    MUST(current_context(d) == nullptr, "after malloc");
    fill(d, block, 7, 3 << 20, nullptr);
    MUST(all_are(d, block, 7, 3 << 20, nullptr), "written and read");
    p.free(block, 3 << 20, 0, nullptr);
    p.empty_cache();
    MUST(current_context(d) == nullptr, "after empty_cache");
    MUST(p.figure("live_bytes") == 0 && p.figure("allocations") == 1, "the books");
    MUST(p.malloc(0, 0, nullptr) == nullptr && p.why().empty(), "nothing is nothing");
    MUST(violations() == 0, "violations");
  };
  IN_OWN_PROCESS(scenario, "");
}

// What is current belongs to the caller: here a context of the same device, as PyTorch has it.
TEST_F(torch_plugin, leaves_the_callers_context_current) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = open();
    const context_guard mine(d.driver(), d.context());
    void *const block = p.malloc(1 << 20, 0, nullptr);
    p.free(block, 1 << 20, 0, nullptr);
    MUST(current_context(d) == d.context(), "taken away");
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_plugin, threads_meet_at_their_first_request) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    constexpr int count = 8;
    std::barrier at_once(count);
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        at_once.arrive_and_wait();
        MUST(p.malloc(4096, 0, nullptr) != nullptr, p.why());
      });
    }
    for (std::thread &t : threads) t.join();
    MUST(p.figure("blocks") == count && p.figure("streams") == 1, "one heap for all");
  };
  IN_OWN_PROCESS(scenario, "");
}

// Blocks are freed by whichever thread drops the tensor, on the stream it was made for.
TEST_F(torch_plugin, threads_free_what_others_have_made) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = open();
    struct tensor {
      void *at;
      std::size_t bytes;
      unsigned char value;
      stream_handle s;
    };
    std::vector<stream> streams;
    for (int i = 0; i < 6; ++i) streams.push_back(new_stream(d));
    std::mutex mutex;
    std::vector<tensor> shared;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < streams.size(); ++i) {
      threads.emplace_back([&, i] {
        std::mt19937 random(i);
        for (int round = 0; round < 150; ++round) {
          tensor t{nullptr, 1 + random() % (1u << (6 + random() % 16)),
                   static_cast<unsigned char>(random()), streams[i].get()};
          t.at = p.malloc(static_cast<ssize_t>(t.bytes), 0, t.s);
          fill(d, t.at, t.value, t.bytes, t.s);
          {
            const std::lock_guard lock(mutex);
            shared.push_back(t);
            if (shared.size() < 40) continue;
            std::swap(shared[random() % shared.size()], shared.back());
            t = shared.back();
            shared.pop_back();
          }
          MUST(all_are(d, t.at, t.value, t.bytes, t.s), "somebody else's bytes");
          p.free(t.at, static_cast<ssize_t>(t.bytes), 0, t.s);
        }
        MUST(current_context(d) == nullptr, "in a thread of its own");
      });
    }
    for (std::thread &t : threads) t.join();
    for (const tensor &t : shared) {
      MUST(all_are(d, t.at, t.value, t.bytes, t.s), "at the end");
      p.free(t.at, static_cast<ssize_t>(t.bytes), 0, t.s);
    }
    MUST(p.figure("live_bytes") == 0, "all freed");
    MUST(violations() == 0, "violations");
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_plugin, each_device_has_its_own_memory) {
  if (!::testing::internal::InDeathTestChild() && *device::count() < 2) {
    GTEST_SKIP() << "needs two devices";
  }
  const auto scenario = [] {
    const plugin p = load_plugin();
    std::array<void *, 2> blocks{};
    for (int i = 0; i < 2; ++i) {
      blocks[static_cast<std::size_t>(i)] = p.malloc((i + 1) << 20, i, nullptr);
      MUST(p.figure("live_bytes", i) == (i + 1) << 20, std::to_string(i));
    }
    // record_stream names no device: it finds the block's.
    const device second = open(1);
    const stream s = new_stream(second);
    p.record_stream(blocks[1], s.get());
    MUST(p.why().empty(), p.why());
    p.free(blocks[1], 2 << 20, 1, nullptr);
    MUST(p.figure("live_bytes", 0) == 1 << 20 && p.figure("live_bytes", 1) == 0, "the second's");
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_plugin, says_why_there_is_no_memory) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    constexpr ssize_t too_much = ssize_t{1} << 45;
    MUST(p.try_malloc(too_much, 0, nullptr) == nullptr, "32 TiB");
    MUST(has(p.why(), "out of memory") && has(p.why(), "32 TiB"), p.why());
    const std::string said = thrown(p, too_much);
    MUST(said.rfind("CUDA out of memory. ", 0) == 0, said);
    MUST(has(said, "on device 0") && has(said, "In use: 0.0 MiB"), said);
    void *const kept = p.malloc(3 << 20, 0, nullptr);
    const std::string full = thrown(p, too_much);
    const bool in_chunks = has(full, "committed: 20.0 MiB");  // a device without VMM
    MUST(has(full, "In use: 3.0 MiB; ") && (in_chunks || has(full, "committed: 4.0 MiB")), full);
    p.free(kept, 3 << 20, 0, nullptr);
    // Another thread has had no failure.
    std::string elsewhere = "unread";
    std::thread([&] { elsewhere = p.why(); }).join();
    MUST(elsewhere.empty(), elsewhere);
    // And all is well.
    p.free(p.malloc(1 << 20, 0, nullptr), 1 << 20, 0, nullptr);
    for (const int nowhere : {-1, 64, 128, 1 << 30}) {
      const std::string none = thrown(p, 512, nowhere);
      MUST(has(none, "no such device") && !has(none, "out of memory"), none);
    }
    MUST(has(thrown(p, -1), "negative"), "-1 bytes");
    MUST(p.stats(64, nullptr, 0) == 0 && p.stats(-1, nullptr, 0) == 0, "no figures");
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_plugin, says_on_stderr_what_it_cannot_free) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    int mine = 0;
    p.free(&mine, 4, 0, nullptr);  // nothing was ever allocated
    void *const block = p.malloc(512, 0, nullptr);
    p.free(block, 512, 0, nullptr);
    p.free(block, 512, 0, nullptr);
    p.free(nullptr, 0, 0, nullptr);
    p.record_stream(&mine, nullptr);
    MUST(p.figure("frees") == 1, "one");
  };
  IN_OWN_PROCESS(scenario,
                 "stillmap: stillmap_free: nothing was allocated on that device.*\n"
                 "stillmap: caching_allocator::free: no block begins at this address.*\n"
                 "stillmap: stillmap_record_stream: no block begins at this address.*\n");
}

// A tensor used on another stream, dropped while that has work queued: its memory waits.
TEST_F(torch_plugin, recorded_streams_are_waited_for) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = open();
    const stream mine = new_stream(d), other = new_stream(d);
    hold(other.get());
    void *const block = p.malloc(8 << 20, 0, mine.get());
    fill(d, block, 1, 8 << 20, other.get());
    p.record_stream(block, other.get());
    p.free(block, 8 << 20, 0, mine.get());
    MUST(p.figure("pending_free_bytes") == 8 << 20, "held");
    void *const next = p.malloc(8 << 20, 0, mine.get());
    MUST(next != block, "handed on too early");
    fill(d, next, 2, 8 << 20, mine.get());
    release(other.get());
    MUST(all_are(d, next, 2, 8 << 20, mine.get()), "overwritten");
    p.free(next, 8 << 20, 0, mine.get());
    MUST(d.driver().synchronize_stream(other.get()), "the other stream");
    MUST(violations() == 0, "violations");
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_plugin, has_limits) {
  const auto scenario = [] {
    setenv("STILLMAP_TORCH_LIMIT", "64MiB", 1);
    const plugin p = load_plugin();
    MUST(has(thrown(p, 65 << 20), "limit of the allocator"), "65 of 64 MiB");
    void *const block = p.malloc(60 << 20, 0, nullptr);
    p.free(block, 60 << 20, 0, nullptr);
    p.empty_cache();
    p.set_memory_fraction(1, 0);
    MUST(has(thrown(p, 65 << 20), "limit of the allocator"), "a fraction does not lift it");
    p.set_memory_fraction(1e-6, 0);
    MUST(has(thrown(p, 60 << 20), "limit of the allocator"), "the smaller one holds");
    p.set_memory_fraction(1, 0);
    MUST(p.figure("limit_bytes") == 64 << 20, "the variable's again");
    p.set_memory_fraction(0, 0);
    MUST(has(thrown(p, 1 << 20), "limit of the allocator"), "a fraction of 0");
    p.set_memory_fraction(2, 0);
    MUST(has(p.why(), "between 0 and 1"), p.why());
    MUST(p.figure("limit_bytes") == 0, "and it stays");
  };
  IN_OWN_PROCESS(scenario, "between 0 and 1");
}

TEST_F(torch_plugin, has_a_page_size) {
  const auto scenario = [] {
    setenv("STILLMAP_TORCH_PAGE_SIZE", "8MiB", 1);
    const plugin p = load_plugin();
    p.free(p.malloc(1 << 20, 0, nullptr), 1 << 20, 0, nullptr);
    // Where pages cannot be mapped, it is not used.
    MUST(p.figure("page_bytes") == (open().capabilities().vmm ? 8 << 20 : 2 << 20), "8 MiB");
  };
  IN_OWN_PROCESS(scenario, "");
  const auto refused = [] {
    setenv("STILLMAP_TORCH_PAGE_SIZE", "3MiB", 1);
    const plugin p = load_plugin();
    MUST(has(thrown(p, 1 << 20), "page_bytes is not a power of two"), p.why());
  };
  IN_OWN_PROCESS(refused, "");
  const auto unreadable = [] {
    setenv("STILLMAP_TORCH_PAGE_SIZE", "large", 1);
    const plugin p = load_plugin();
    MUST(has(thrown(p, 1 << 20), "STILLMAP_TORCH_PAGE_SIZE"), p.why());
  };
  IN_OWN_PROCESS(unreadable, "");
}

TEST_F(torch_plugin, reads_its_limit_in_any_unit) {
  const auto limit = [](const char *text) {
    setenv("STILLMAP_TORCH_LIMIT", text, 1);
    const plugin p = load_plugin();
    if (const std::string said = thrown(p, 1); !said.empty() && has(said, "STILLMAP_TORCH_LIMIT")) {
      return -2LL;
    }
    return p.figure("limit_bytes");
  };
  static const struct {
    const char *text;
    long long bytes;
  } cases[] = {{"67108864", 67108864}, {"64MiB", 67108864}, {"65536K", 67108864},
               {"0.5GiB", 536870912},  {"2GB", 2147483648}, {"1T", 1099511627776},
               {"64 MiB", -2},         {"-1", -2},          {"much", -2},
               {"1MiBs", -2},          {"1e400", -2},       {"99999999999T", -2}};
  for (const auto &c : cases) {
    IN_OWN_PROCESS([&] { MUST(limit(c.text) == c.bytes, c.text); }, "");
  }
}

}  // namespace
}  // namespace stillmap::testing
