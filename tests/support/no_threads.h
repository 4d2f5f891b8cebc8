// While it exists, no thread can be started: each would have a stack larger than the address space. A
// thread whose creator gives it attributes can.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace stillmap::testing {

class no_threads {
 public:
  no_threads() {
    pthread_getattr_default_np(&attributes_);
    pthread_attr_getstacksize(&attributes_, &before_);
    set(std::size_t{1} << 47);
  }
  ~no_threads() {
    set(before_);
    pthread_attr_destroy(&attributes_);
  }
  no_threads(const no_threads &) = delete;

 private:
  void set(std::size_t bytes) {
    EXPECT_EQ(pthread_attr_setstacksize(&attributes_, bytes), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes_), 0);
  }
  pthread_attr_t attributes_;
  std::size_t before_ = 0;
};

}  // namespace stillmap::testing
