// hostcuda_run_threads: host functions that are written for one thread of a grid, as GPU code is.
// The threads of a block take turns on the thread that runs the kernel. One is switched only where
// it waits for its block, so a kernel that does not needs one stack.
#include <hostcuda/hostcuda.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "hostcuda/src/execution/engine.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace hostcuda {
namespace {

using thread_body = void (*)(void **params);

// More than the 512 KiB of local memory that CUDA allows a thread. Only touched pages take memory.
constexpr std::size_t kStackBytes = std::size_t{1} << 20;
constexpr std::size_t kGuardBytes = 4096;  // below a stack: a thread that overflows it faults

class stack {
 public:
  stack()
      : at_(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0)) {
    if (ok()) mprotect(at_, kGuardBytes, PROT_NONE);
  }
  stack(const stack &) = delete;
  stack &operator=(const stack &) = delete;
  ~stack() {
    if (ok()) munmap(at_, kStackBytes);
  }

  bool ok() const { return at_ != MAP_FAILED; }
  stack_t as_context_stack() const { return {at_, 0, kStackBytes}; }

 private:
  void *at_;
};

// Where a stack goes on. makecontext begins one. swapcontext makes a system call each time for the
// signal mask, which is the same on all of them; the compiler's own pair does not. AddressSanitizer
// must be told of each switch, and not every compiler has the pair for other processors.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
struct place {
  void *words[5];
};

// By itself, because the two builtins must not be in one function.
[[gnu::noinline, noreturn]] void go_on(place &at) {
  __builtin_longjmp(at.words, 1);
}

[[gnu::noinline]] void switch_to(place &from, place &to) {
  if (__builtin_setjmp(from.words) == 0) go_on(to);
}

[[gnu::noinline]] void begin(place &from, place & /*to*/, const ucontext_t &first) {
  if (__builtin_setjmp(from.words) == 0) setcontext(&first);
}
void arrive(place & /*scheduler*/) {}
#else
struct place {
  ucontext_t context;
  void *frames = nullptr;  // AddressSanitizer's, of this stack
  const void *bottom = nullptr;
  std::size_t bytes = 0;
};

#ifdef __SANITIZE_ADDRESS__
void leave(place &from, const void *bottom, std::size_t bytes) {
  __sanitizer_start_switch_fiber(&from.frames, bottom, bytes);
}
void come_back(place &to) {
  __sanitizer_finish_switch_fiber(to.frames, nullptr, nullptr);
}
void arrive(place &scheduler) {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler.bottom, &scheduler.bytes);
}
#else
void leave(place &, const void *, std::size_t) {}
void come_back(place &) {}
void arrive(place & /*scheduler*/) {}
#endif

void switch_to(place &from, place &to) {
  leave(from, to.bottom, to.bytes);
  swapcontext(&from.context, &to.context);
  come_back(from);
}

void begin(place &from, place &to, const ucontext_t &first) {
  to.bottom = first.uc_stack.ss_sp;
  to.bytes = first.uc_stack.ss_size;
  leave(from, to.bottom, to.bytes);
  swapcontext(&from.context, &first);
  come_back(from);
}
#endif

// Runs threads of the block, one after the other, on a stack of its own.
struct fiber {
  stack memory;
  place saved{};
  bool begun = false;
  hostcuda_thread thread{};  // the one that it runs
};

class grid_run {
 public:
  // Begins `fibers` anew, and may add some.
  grid_run(const hostcuda_launch &launch, unsigned shared_bytes, thread_body body,
           std::vector<std::unique_ptr<fiber>> &fibers)
      : launch_(launch), shared_bytes_(shared_bytes), body_(body), fibers_(fibers) {
    for (const auto &f : fibers_) {
      f->begun = false;
      idle_.push_back(f.get());
    }
  }

  CUresult run() {
    for (unsigned z = 0; z < launch_.grid[2]; ++z) {
      for (unsigned y = 0; y < launch_.grid[1]; ++y) {
        for (unsigned x = 0; x < launch_.grid[0]; ++x) {
          const unsigned index[3] = {x, y, z};
          std::copy_n(index, 3, block_);
          if (const CUresult r = run_block(); r != CUDA_SUCCESS) return r;
        }
      }
    }
    return CUDA_SUCCESS;
  }

  const hostcuda_thread *current() const { return running_ ? &running_->thread : nullptr; }

  // How many threads of a block came to a barrier with a predicate that is true, and how many in all.
  struct votes {
    unsigned nonzero = 0;
    unsigned all = 0;
  };

  // Returns when each thread of the block has called it or has ended.
  // Requires: a thread is running.
  votes wait_for_block(bool predicate) {
    fiber *const self = running_;
    waiting_.push_back(self);
    arrived_.nonzero += predicate ? 1 : 0;
    ++arrived_.all;
    switch_to(self->saved, scheduler_);
    return counted_;
  }

 private:
  CUresult run_block() {
    next_ = 0;
    count_ = launch_.block[0] * launch_.block[1] * launch_.block[2];
    // So that nothing is allocated on the stack of a thread.
    for (auto *const list : {&idle_, &waiting_, &released_})
      list->reserve(std::max<std::size_t>(count_, fibers_.size() + 1));
    while (next_ < count_) {
      fiber *const f = free_fiber();
      if (f == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
      resume(*f);
    }
    while (!waiting_.empty()) {
      released_.swap(waiting_);
      counted_ = std::exchange(arrived_, votes{});
      for (fiber *const f : released_) resume(*f);
      released_.clear();
    }
    return CUDA_SUCCESS;
  }

  fiber *free_fiber() {
    if (idle_.empty()) {
      auto f = std::make_unique<fiber>();
      if (!f->memory.ok()) return nullptr;
      idle_.push_back(f.get());
      fibers_.push_back(std::move(f));
    }
    fiber *const f = idle_.back();
    idle_.pop_back();
    return f;
  }

  void resume(fiber &f) {
    running_ = &f;
    if (f.begun) {
      switch_to(scheduler_, f.saved);
    } else {
      f.begun = true;
      ucontext_t first;
      getcontext(&first);
      first.uc_stack = f.memory.as_context_stack();
      first.uc_link = nullptr;
      makecontext(&first, &grid_run::enter, 0);
      begin(scheduler_, f.saved, first);
    }
    running_ = nullptr;
    // Those that wait stay where they are: what they hold on their stacks is lost, as on a device.
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

  static void enter();

  [[noreturn]] void run_fiber(fiber &f) {
    for (;;) {
      run_threads_of(f);
      idle_.push_back(&f);
      switch_to(f.saved, scheduler_);
    }
  }

  void run_threads_of(fiber &f) {
    while (next_ < count_ && !thrown_) {
      const unsigned at = next_++;
      const unsigned *const size = launch_.block;
      const unsigned index[3] = {at % size[0], at / size[0] % size[1], at / size[0] / size[1]};
      std::copy_n(index, 3, f.thread.thread_idx);
      std::copy_n(block_, 3, f.thread.block_idx);
      std::copy_n(size, 3, f.thread.block_dim);
      std::copy_n(launch_.grid, 3, f.thread.grid_dim);
      f.thread.shared_bytes = shared_bytes_;
      try {
        body_(launch_.params);
      } catch (...) {
        thrown_ = std::current_exception();
      }
    }
  }

  const hostcuda_launch &launch_;
  const unsigned shared_bytes_;
  const thread_body body_;
  unsigned block_[3] = {};
  unsigned next_ = 0;  // the first thread of the block that has not begun
  unsigned count_ = 0;
  std::vector<std::unique_ptr<fiber>> &fibers_;
  std::vector<fiber *> idle_;
  std::vector<fiber *> waiting_;
  std::vector<fiber *> released_;  // waited until all of the block did
  votes arrived_;                  // of those in waiting_
  votes counted_;                  // of those in released_
  fiber *running_ = nullptr;
  place scheduler_{};
  std::exception_ptr thrown_;
};

thread_local grid_run *this_run = nullptr;

void grid_run::enter() {
  grid_run &run = *this_run;
  arrive(run.scheduler_);
  run.run_fiber(*run.running_);
}

std::mutex one_grid_at_a_time;

// Kept for the next grid: to map and touch a thousand stacks takes longer than most kernels.
std::vector<std::unique_ptr<fiber>> &kept_fibers() {
  static auto *const kept = new std::vector<std::unique_ptr<fiber>>;
  return *kept;
}

CUresult run_threads(const hostcuda_launch *launch, thread_body body) {
  if (launch == nullptr || body == nullptr) return CUDA_ERROR_INVALID_VALUE;
  running_work *const work = this_threads_work();
  if (work == nullptr || !work->in_kernel || this_run != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  std::lock_guard lock(one_grid_at_a_time);
  grid_run run(*launch, work->shared_bytes, body, kept_fibers());
  struct leave {
    ~leave() { this_run = nullptr; }
  } at_end;
  this_run = &run;
  const CUresult r = run.run();
  if (r != CUDA_SUCCESS) {
    std::fprintf(stderr,
                 "hostcuda: a kernel failed: the host has no memory for the stacks of %u threads "
                 "that wait at a barrier, 1 MiB of addresses each\n",
                 launch->block[0] * launch->block[1] * launch->block[2]);
    work->failure = CUDA_ERROR_LAUNCH_FAILED;
  }
  return r;
}

}  // namespace
}  // namespace hostcuda

extern "C" {

__attribute__((visibility("default"))) CUresult hostcuda_run_threads(const hostcuda_launch *launch,
                                                                     void (*body)(void **params)) {
  return hostcuda::run_threads(launch, body);
}

__attribute__((visibility("default"))) const hostcuda_thread *hostcuda_this_thread(void) {
  return hostcuda::this_run != nullptr ? hostcuda::this_run->current() : nullptr;
}

__attribute__((visibility("default"))) CUresult hostcuda_syncthreads(int predicate,
                                                                     unsigned *nonzero,
                                                                     unsigned *threads) {
  if (hostcuda_this_thread() == nullptr) return CUDA_ERROR_NOT_PERMITTED;
  const auto votes = hostcuda::this_run->wait_for_block(predicate != 0);
  if (nonzero != nullptr) *nonzero = votes.nonzero;
  if (threads != nullptr) *threads = votes.all;
  return CUDA_SUCCESS;
}
}
