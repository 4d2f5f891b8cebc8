// Thread-local object that outlives the thread-local destructors of its thread. Destructors of static objects run after
// those of the main thread and may still call the driver, so the main thread's object is never destroyed.
#pragma once

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hostcuda {

template <class T>
class thread_object {
 public:
  static T &get() { return mine_ != nullptr ? *mine_ : make(); }

 private:
  // By a key and not by a thread_local's destructor, whose registration needs the loader's lock: a library that is
  // being loaded may have it, and wait for this thread.
  [[gnu::noinline]] static T &make() {
    static const pthread_key_t at_end = [] {
      pthread_key_t key{};
      ::pthread_key_create(&key, &destroy);
      return key;
    }();
    mine_ = new T;
    ::pthread_setspecific(at_end, mine_);
    return *mine_;
  }
  static void destroy(void *object) {
    if (::syscall(SYS_gettid) == ::getpid()) return;
    delete static_cast<T *>(object);
    mine_ = nullptr;
  }

  inline static constinit thread_local T *mine_ = nullptr;
};

template <class T>
T &thread_owned() {
  return thread_object<T>::get();
}

}  // namespace hostcuda
