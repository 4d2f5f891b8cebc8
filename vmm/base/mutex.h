// Mutexes, locks and condition variables whose use clang checks: -Wthread-safety. As those of the
// standard library, which carry no attributes.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
//
//   class account {
//     void add(int n) STILLMAP_EXCLUDES(mutex_) {
//       const lock_guard lock(mutex_);
//       sum_ += n;
//     }
//     mutex mutex_;
//     int sum_ STILLMAP_GUARDED_BY(mutex_) = 0;
//   };
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#ifdef __clang__
#define STILLMAP_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define STILLMAP_THREAD_ATTRIBUTE(...)
#endif

// A class that can be held: a mutex; or that holds one as long as it exists.
#define STILLMAP_CAPABILITY(name) STILLMAP_THREAD_ATTRIBUTE(capability(name))
#define STILLMAP_SCOPED_CAPABILITY STILLMAP_THREAD_ATTRIBUTE(scoped_lockable)
// A variable, or what a pointer leads to, that is used only by whoever holds the mutex.
#define STILLMAP_GUARDED_BY(...) STILLMAP_THREAD_ATTRIBUTE(guarded_by(__VA_ARGS__))
#define STILLMAP_PT_GUARDED_BY(...) STILLMAP_THREAD_ATTRIBUTE(pt_guarded_by(__VA_ARGS__))
// A function that is called only by whoever holds the mutexes, or does not hold them.
#define STILLMAP_REQUIRES(...) STILLMAP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define STILLMAP_EXCLUDES(...) STILLMAP_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// A function that locks, or unlocks.
#define STILLMAP_ACQUIRE(...) STILLMAP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define STILLMAP_TRY_ACQUIRE(...) STILLMAP_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define STILLMAP_RELEASE(...) STILLMAP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
// A function that returns the mutex.
#define STILLMAP_RETURN_CAPABILITY(x) STILLMAP_THREAD_ATTRIBUTE(lock_returned(x))
// A function after which the analysis takes the mutex as held.
#define STILLMAP_ASSERT_CAPABILITY(x) STILLMAP_THREAD_ATTRIBUTE(assert_capability(x))
// Where the analysis cannot follow. Always with the reason.
#define STILLMAP_NO_THREAD_SAFETY_ANALYSIS STILLMAP_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace stillmap {

class STILLMAP_CAPABILITY("mutex") mutex {
 public:
  void lock() STILLMAP_ACQUIRE() { mutex_.lock(); }
  bool try_lock() STILLMAP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() STILLMAP_RELEASE() { mutex_.unlock(); }

 private:
  friend class condition_variable;
  std::mutex mutex_;
};

template <class Mutex>
class STILLMAP_SCOPED_CAPABILITY lock_guard {
 public:
  explicit lock_guard(Mutex &m) STILLMAP_ACQUIRE(m) : mutex_(m) { m.lock(); }
  lock_guard(Mutex &m, std::adopt_lock_t) STILLMAP_REQUIRES(m) : mutex_(m) {}
  lock_guard(const lock_guard &) = delete;
  ~lock_guard() STILLMAP_RELEASE() { mutex_.unlock(); }

 private:
  Mutex &mutex_;
};

// Two mutexes, in an order that cannot deadlock with another lock of the same two.
template <class First, class Second>
class STILLMAP_SCOPED_CAPABILITY scoped_lock {
 public:
  scoped_lock(First &a, Second &b) STILLMAP_ACQUIRE(a, b) : a_(a), b_(b) { std::lock(a, b); }
  scoped_lock(const scoped_lock &) = delete;
  ~scoped_lock() STILLMAP_RELEASE() {
    a_.unlock();
    b_.unlock();
  }

 private:
  First &a_;
  Second &b_;
};

// Can be unlocked early, and waits on a condition variable. Does not move: the analysis could not
// follow it.
template <class Mutex>
class STILLMAP_SCOPED_CAPABILITY unique_lock {
 public:
  explicit unique_lock(Mutex &m) STILLMAP_ACQUIRE(m) : mutex_(&m) { lock(); }
  unique_lock(const unique_lock &) = delete;
  ~unique_lock() STILLMAP_RELEASE() {
    if (held_) mutex_->unlock();
  }

  void lock() STILLMAP_ACQUIRE() {
    mutex_->lock();
    held_ = true;
  }
  void unlock() STILLMAP_RELEASE() {
    held_ = false;
    mutex_->unlock();
  }

 private:
  friend class condition_variable;
  Mutex *const mutex_;
  bool held_ = false;
};

// Waits with a predicate: give a lambda that uses what is guarded STILLMAP_REQUIRES(the mutex).
class condition_variable {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  template <class Predicate>
  void wait(unique_lock<mutex> &l, Predicate holds) {
    borrowed b(l);
    condition_.wait(b.lock, std::move(holds));
  }
  template <class Rep, class Period, class Predicate>
  bool wait_for(unique_lock<mutex> &l, const std::chrono::duration<Rep, Period> &time,
                Predicate holds) {
    borrowed b(l);
    return condition_.wait_for(b.lock, time, std::move(holds));
  }

 private:
  // The standard library's lock of the mutex that `l` holds, and will hold again.
  struct borrowed {
    explicit borrowed(unique_lock<mutex> &l) : lock(l.mutex_->mutex_, std::adopt_lock) {}
    ~borrowed() { (void)lock.release(); }
    std::unique_lock<std::mutex> lock;
  };
  std::condition_variable condition_;
};

}  // namespace stillmap
