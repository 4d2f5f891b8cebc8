// Thread-local object that outlives the thread-local destructors of the main thread. Destructors of
// static objects run after those and may still call the driver, so the main thread's object is
// never destroyed.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace hostcuda {

template <class T>
T &thread_owned() {
  static thread_local T *mine = nullptr;
  static thread_local struct guard {
    bool armed = false;
    ~guard() {
      if (!armed || ::syscall(SYS_gettid) == ::getpid()) return;
      delete mine;
      mine = nullptr;
    }
  } at_end;
  if (mine == nullptr) {
    mine = new T;
    at_end.armed = true;
  }
  return *mine;
}

}  // namespace hostcuda
