// Heaps with a tag of their own, as PyTorch's MemPools call them.
#include "stillmap/allocators/torch/internal/tagged_heaps.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/allocators/torch/internal/pool_refusal.h"
#include "stillmap/vmm/base/units.h"
#include "tests/allocators/torch/plugin.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {
namespace {

using namespace literals;
using torch_plugin::functions_of_tag;
using torch_plugin::heap_functions;
using torch_plugin::heaps_of_tag;
using torch_plugin::most_tags;
using torch_plugin::take_refusal;

class tagged_heaps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::testing::internal::InDeathTestChild()) return;
    if (!hostcuda_control::available()) GTEST_SKIP() << "needs hostcuda's switches";
  }
};

heap_functions functions(const std::string &tag, std::size_t limit = SIZE_MAX) {
  const auto got = functions_of_tag({limit, false, tag});
  MUST(got.has_value(), got ? "" : got.error().message());
  return *got;
}
std::size_t committed(const char *tag) {
  return heaps_of_tag(tag)->known(0)->stats().total.committed;
}

TEST_F(tagged_heaps, each_tag_has_functions_of_its_own) {
  const auto scenario = [] {
    const heap_functions weights = functions("weights"), cache = functions("cache");
    MUST(weights.allocate != cache.allocate && weights.free != cache.free, "they differ");
    MUST(functions("weights").allocate == weights.allocate, "they are the tag's for ever");
    MUST(heaps_of_tag("others") == nullptr, "nobody asked for it");
    void *const w = weights.allocate(3_MiB, 0, nullptr), *const c =
                                                             cache.allocate(5_MiB, 0, nullptr);
    MUST(w != nullptr && c != nullptr, torch_plugin::heaps_of_tag("weights") ? "allocated" : "");
    const auto requested = [](const char *tag) {
      return heaps_of_tag(tag)->known(0)->stats().total.requested;
    };
    MUST(requested("weights") == 3_MiB && requested("cache") == 5_MiB, "each has its own heap");
  };
  IN_OWN_PROCESS(scenario, "");
}

std::atomic<int> last_new_heap{-1};

TEST_F(tagged_heaps, the_first_memory_on_a_device_is_told_to_an_observer) {
  const auto scenario = [] {
    void *const before = functions("before").allocate(1_MiB, 0, nullptr);
    torch_plugin::observe_new_heaps([](int ordinal) noexcept { last_new_heap = ordinal; });
    const heap_functions f = functions("observed");
    MUST(before != nullptr && last_new_heap == -1, "nothing was allocated to it");
    MUST(f.allocate(1_MiB, 99, nullptr) == nullptr && last_new_heap == -1, "no device, no heap");
    MUST(f.allocate(1_MiB, 0, nullptr) != nullptr && last_new_heap == 0, "it has a heap");
    last_new_heap = -1;
    MUST(f.allocate(1_MiB, 0, nullptr) != nullptr && last_new_heap == -1, "it is told once");
  };
  IN_OWN_PROCESS(scenario, "");
}

// PyTorch frees a segment when the device is to have its memory.
TEST_F(tagged_heaps, what_is_freed_returns_to_the_device) {
  const auto scenario = [] {
    const heap_functions f = functions("freed");
    void *const first = f.allocate(64_MiB, 0, nullptr), *const second =
                                                            f.allocate(32_MiB, 0, nullptr);
    MUST(first != nullptr && second != nullptr && committed("freed") >= 96_MiB, "allocated");
    f.free(first, 64_MiB, 0, nullptr);
    MUST(committed("freed") < 64_MiB, "the free pages are gone");
    f.free(second, 32_MiB, 0, nullptr);
    MUST(committed("freed") == 0, "all are");
  };
  IN_OWN_PROCESS(scenario, "");
}

// An exception would bypass PyTorch's retry and its OutOfMemoryError.
TEST_F(tagged_heaps, a_failure_is_null) {
  const auto scenario = [] {
    const heap_functions f = functions("small", 8_MiB);
    MUST(f.allocate(64_MiB, 0, nullptr) == nullptr, "above the limit");
    MUST(f.allocate(1_MiB, 127, nullptr) == nullptr, "no such device");
    MUST(f.allocate(1_MiB, -1, nullptr) == nullptr, "no such device");
    MUST(f.allocate(0, 0, nullptr) == nullptr, "nothing asked for");
    f.free(nullptr, 0, 0, nullptr);
    MUST(f.allocate(1_MiB, 0, nullptr) != nullptr, "the heap works");
  };
  IN_OWN_PROCESS(scenario, "");
}

// PyTorch's own exception does not say why a pool has no memory.
TEST_F(tagged_heaps, the_reason_of_a_refusal_is_kept) {
  const auto scenario = [] {
    const heap_functions f = functions("refusing", 8_MiB), other = functions("other");
    MUST(take_refusal().empty(), "nothing was refused");
    MUST(f.allocate(64_MiB, 0, nullptr) == nullptr, "above the limit");
    std::thread([&] {
      MUST(other.allocate(1_MiB, 0, nullptr) != nullptr, "of another thread");
    }).join();
    const std::string why = take_refusal();
    MUST(why.find("tag refusing, device 0") != std::string::npos &&
             why.find("limit 8 MiB") != std::string::npos,
         why);
    MUST(take_refusal().empty(), "it is told once");
    MUST(f.allocate(64_MiB, 0, nullptr) == nullptr, "above the limit");
    MUST(f.allocate(1_MiB, 0, nullptr) != nullptr, "the retry was served");
    MUST(take_refusal().empty(), "no exception comes of it");
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(tagged_heaps, a_block_of_another_tag_is_reported) {
  const auto scenario = [] {
    const heap_functions mine = functions("mine"), theirs = functions("theirs");
    void *const block = theirs.allocate(4_MiB, 0, nullptr);
    MUST(mine.allocate(4_MiB, 0, nullptr) != nullptr, "allocated");
    mine.free(block, 4_MiB, 0, nullptr);
    MUST(committed("theirs") >= 4_MiB, "it is left alone");
  };
  IN_OWN_PROCESS(scenario, "stillmap: .*no block");
}

TEST_F(tagged_heaps, there_are_at_most_so_many_tags) {
  const auto scenario = [] {
    MUST(!functions_of_tag({SIZE_MAX, false, ""}), "a tag has a name");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (std::size_t i = 0; i < most_tags; ++i) functions("tag" + std::to_string(i));
      });
    }
    for (std::thread &t : threads) t.join();
    const auto more = functions_of_tag({SIZE_MAX, false, "more"});
    MUST(!more && more.error().value == most_tags + 1 && more.error().limit == most_tags, "full");
    MUST(functions("tag3").allocate != nullptr, "those that are there still work");
  };
  IN_OWN_PROCESS(scenario, "");
}

}  // namespace
}  // namespace stillmap::testing
