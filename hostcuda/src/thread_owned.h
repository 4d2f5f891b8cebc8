// What a thread has of its own, for as long as it may call the driver. The main thread does so for
// longer than its thread-locals live: destructors of static objects run after those are gone, and
// programs give their memory back there. What it owns is therefore never destroyed.
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
