// The quota that heaps of a process share for a device.
#include "stillmap/allocators/device_share.h"

#include <unistd.h>

#include <thread>

#include "stillmap/allocators/torch/internal/tagged_heaps.h"
#include "stillmap/vmm/base/units.h"
#include "tests/allocators/torch/plugin.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {
namespace {

using namespace literals;

// A quota of this process alone. What a process leaves that ends without a destructor is not in /dev/shm.
std::string own_name(const char *what) {
  return ::testing::TempDir() + "stillmap-share-" + std::string(what) + "-" +
         std::to_string(::getpid());
}

class device_quota : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::testing::internal::InDeathTestChild()) return;
    if (!hostcuda_control::available()) GTEST_SKIP() << "needs hostcuda's switches";
  }
};

TEST_F(device_quota, is_opened_once_and_ends_with_its_last_heap) {
  const auto scenario = [] {
    const device d = open();
    const share_settings s{own_name("once"), 64_MiB};
    auto first = share_device(s, d), second = share_device({s.name, 32_MiB}, d);
    MUST(first && second && *first == *second, "the same");
    auto stats = shared_quota::stats_of(s.name);
    MUST(stats && stats->participants.size() == 1 && stats->participants[0].listens, "one");
    MUST(stats->limit == 64_MiB, "the first limit");
    MUST(known_share(0) == *first, "known");
    first->reset();
    second->reset();
    MUST(known_share(0) == nullptr, "it has ended");
    MUST(share_device({s.name, 32_MiB}, d).has_value(), "nobody took part");
    MUST(shared_quota::stats_of(s.name)->limit == 32_MiB, "the limit of a new beginning");
    MUST(share_device({s.name}, d).has_value(), "as it is");
    MUST(shared_quota::stats_of(s.name)->limit == 32_MiB, "as it was");
    MUST(shared_quota::remove(s.name), "removed");
    MUST(share_device({s.name}, d).has_value(), "of the device");
    MUST(shared_quota::stats_of(s.name)->limit == d.total_memory().bytes(), "all of it");
    MUST(shared_quota::remove(s.name), "removed");
  };
  IN_OWN_PROCESS(scenario, "");
}

// Both the quota's thread, which cannot wait for itself, and one that polls.
TEST_F(device_quota, may_lose_its_last_reference_in_a_reclaimer) {
  const auto scenario = [] {
    const std::string name = own_name("last");
    auto asker = embedded_quota::open(name, {.limit = 100});
    auto holder = embedded_quota::open(name, {});
    MUST(asker && holder && (*holder)->reserve(90), "reserved");
    std::unique_ptr<reclaimer_registration> given =
        (*holder)->add_reclaimer(reclaim_kind::cached, [&](std::uint64_t) -> std::uint64_t {
          MUST(!(*holder)->make_room(1) && !(*holder)->poll(), "a reclaimer would wait for itself");
          holder->reset();
          return 0;
        });
    MUST((*holder)->shared().start_thread(), "started");
    MUST((*asker)->make_room(50), "granted once the holder has left");
    (*asker)->end_room();
    MUST(shared_quota::stats_of(name)->reserved == 0, "nothing is held");
    MUST(shared_quota::remove(name), "removed");
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(device_quota, rooms_of_a_thread_nest) {
  const auto scenario = [] {
    const std::string name = own_name("rooms");
    auto q = embedded_quota::open(name, {.limit = 100});
    MUST(q && (*q)->make_room(50) && (*q)->make_room(20), "two rooms");
    (*q)->end_room();
    MUST((*q)->shared().stats()->own == 50, "the outer one is open");
    MUST((*q)->reserve(30), "out of it");
    std::thread([&] { (*q)->end_room(); }).join();
    MUST((*q)->shared().stats()->own == 50, "of another thread");
    (*q)->end_room();
    (*q)->end_room();
    MUST((*q)->shared().stats()->own == 30, "what was used");
    MUST(shared_quota::remove(name), "removed");
  };
  IN_OWN_PROCESS(scenario, "");
}

// The thread answers while the process ends, and others ask all the time.
TEST_F(device_quota, lets_the_process_end) {
  const auto scenario = [] {
    const std::string name = own_name("end");
    setenv("STILLMAP_SHARE", (name + ":64MiB").c_str(), 1);
    const plugin p = load_plugin();
    void *const block = p.malloc(5_MiB, 0, nullptr);
    MUST(block != nullptr, p.why());
    p.free(block, 5_MiB, 0, nullptr);
    auto *const asker =
        new result(embedded_quota::open(name, {.timeout = std::chrono::milliseconds(50)}));
    std::thread([asker] {
      for (;;) {
        if ((**asker)->make_room(62_MiB)) (**asker)->end_room();
      }
    }).detach();
    void *const next = p.malloc(5_MiB, 0, nullptr);
    MUST(next != nullptr || !p.why().empty(), "served or refused");
    static_cast<void>(shared_quota::remove(name));
  };
  IN_OWN_PROCESS(scenario, "");
}

}  // namespace
}  // namespace stillmap::testing
