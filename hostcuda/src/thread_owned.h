// Thread-local object that outlives the thread-local destructors of the main thread. Destructors of
// static objects run after those and may still call the driver, so the main thread's object is
// never destroyed.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace hostcuda {

template <class T>
class thread_object {
 public:
  static T &get() { return mine_ != nullptr ? *mine_ : make(); }

 private:
  // Here, because a thread-local object with a destructor costs a check wherever it is declared.
  [[gnu::noinline]] static T &make() {
    static thread_local struct guard {
      ~guard() {
        if (::syscall(SYS_gettid) == ::getpid()) return;
        delete mine_;
        mine_ = nullptr;
      }
    } at_end;
    (void)at_end;
    return *(mine_ = new T);
  }

  inline static constinit thread_local T *mine_ = nullptr;
};

template <class T>
T &thread_owned() {
  return thread_object<T>::get();
}

}  // namespace hostcuda
