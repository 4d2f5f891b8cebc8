#include "stillmap/allocators/embedded_quota.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

// Without a destructor: calls arrive after those of statics. No lock, which a thread of a forked child's parent
// could have held.
struct gate_state {
  std::atomic<bool> is_closed{false};
  std::atomic<int> inside{0};
};
constinit gate_state gate;

// Calls of reclaimers that this thread is in.
thread_local constinit int reclaimers_of_thread = 0;

class reclaimer_call {
 public:
  reclaimer_call() {
    gate.inside.fetch_add(1);
    ++reclaimers_of_thread;
  }
  ~reclaimer_call() {
    --reclaimers_of_thread;
    gate.inside.fetch_sub(1);
  }
  reclaimer_call(const reclaimer_call &) = delete;
  // After the call is counted, so that one that closes the gate sees the call, or the call sees that it is closed.
  bool is_allowed() const { return !gate.is_closed.load(); }
};

void stop_at_exit() {
  constexpr std::chrono::milliseconds most{1'000};
  embedded_quota::stop_reclaimers(most);
}

void register_exit() {
  // Of the process in which it is registered: a forked child has no thread that could be in a reclaimer.
  static const fork_watch *const born = new fork_watch;
  static const int registered = std::atexit([] {
    if (!born->in_child()) stop_at_exit();
  });
  static_cast<void>(registered);
}

status refuse_in_reclaimer() {
  if (reclaimers_of_thread == 0) return {};
  return make_error(errc::busy,
                    "a reclaimer cannot ask for memory or poll: it would wait for itself");
}

}  // namespace

result<std::shared_ptr<embedded_quota>> embedded_quota::open(const std::string &name,
                                                             shared_quota_options options) {
  return with_host_memory("shared_quota::open", [&]() -> result<std::shared_ptr<embedded_quota>> {
    register_exit();
    STILLMAP_ASSIGN_OR_RETURN(auto shared, shared_quota::open(name, std::move(options)));
    return std::shared_ptr<embedded_quota>(new embedded_quota(std::move(shared)));
  });
}

embedded_quota::~embedded_quota() {
  if (is_stuck()) {
    new (std::nothrow) std::shared_ptr<shared_quota>(std::move(shared_));
    return;
  }
  if (reclaimers_of_thread == 0) return;
  try {
    start_thread<std::thread>([last = std::move(shared_)]() mutable { last.reset(); }).detach();
  } catch (const std::exception &) {
    // Where even that fails, the reservation lasts as long as the process.
    new (std::nothrow) std::shared_ptr<shared_quota>(std::move(shared_));
  }
}

status embedded_quota::make_room(std::uint64_t bytes) {
  return with_host_memory("shared_quota::make_room", [&]() -> status {
    STILLMAP_RETURN_IF_ERROR(refuse_in_reclaimer());
    return shared_->make_room(bytes);
  });
}

std::unique_ptr<reclaimer_registration> embedded_quota::add_reclaimer(
    reclaim_kind kind, std::function<std::uint64_t(std::uint64_t bytes)> reclaim) {
  return shared_->add_reclaimer(kind, [reclaim = std::move(reclaim)](std::uint64_t bytes) {
    const reclaimer_call call;
    return call.is_allowed() ? reclaim(bytes) : std::uint64_t{0};
  });
}

result<std::uint64_t> embedded_quota::poll() {
  const operation_scope scope("shared_quota::poll");
  STILLMAP_RETURN_IF_ERROR(refuse_in_reclaimer());
  return shared_->poll();
}

bool embedded_quota::stop_reclaimers(std::chrono::milliseconds timeout) noexcept {
  constexpr std::chrono::milliseconds pause{1};
  gate.is_closed.store(true);
  const auto until = std::chrono::steady_clock::now() + timeout;
  // Those of this thread cannot end before it returns.
  while (gate.inside.load() > reclaimers_of_thread) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

bool embedded_quota::is_stuck() noexcept {
  return gate.is_closed.load() && gate.inside.load() > reclaimers_of_thread;
}

}  // namespace stillmap
