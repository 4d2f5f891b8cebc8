// The one way to start a thread of the library. A handler of the program's for SIGINT or SIGALRM runs on
// any thread that does not block the signal; it must not run on ours, whose stack, locks and interrupted
// system calls the program does not know.
// For sources and internal headers only.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <concepts>
#include <functional>
#include <thread>
#include <utility>

namespace stillmap {

// Blocks, in this thread and those that it starts, all signals but those that a thread raises by what it
// does, until the end of the scope. One that arrives meanwhile is delivered then.
class asynchronous_signals_blocked {
 public:
  asynchronous_signals_blocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (const int raised : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
      sigdelset(&all, raised);
    }
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~asynchronous_signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  asynchronous_signals_blocked(const asynchronous_signals_blocked &) = delete;

 private:
  sigset_t before_;
};

// What each of these threads calls first. The preload sets it, whose threads must not wait where those of the program
// do. Null: nothing.
inline constinit std::atomic<void (*)() noexcept> at_thread_start{nullptr};

// A std::jthread or std::thread that runs the function, with those signals blocked.
// Throws as its constructor does: std::system_error, std::bad_alloc.
template <class Thread = std::jthread, class Function, class... Arguments>
Thread start_thread(Function &&function, Arguments &&...arguments) {
  const asynchronous_signals_blocked inherited;
  return Thread(
      [f = std::forward<Function>(function)]<class... Given>(
          Given && ...given) mutable requires std::invocable<std::decay_t<Function>, Given...> {
        if (const auto begin = at_thread_start.load(std::memory_order_acquire)) begin();
        std::invoke(std::move(f), std::forward<Given>(given)...);
      },
      std::forward<Arguments>(arguments)...);
}

}  // namespace stillmap
