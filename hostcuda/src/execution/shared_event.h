// Events that several processes record and wait for (CU_EVENT_INTERPROCESS).
//
// Each recording of any process has a number. The processes share a page with the last number and
// with the numbers that have completed.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "hostcuda/src/shared_file.h"

namespace hostcuda {

class shared_event {
 public:
  // Returns nullptr without memory or a descriptor.
  static std::shared_ptr<shared_event> create();
  // Errors: INVALID_HANDLE (not a handle, or the event is destroyed), INVALID_CONTEXT (an event of
  // this process), MAP_FAILED.
  static CUresult open(const CUipcEventHandle &handle, std::shared_ptr<shared_event> *out);

  struct page;
  shared_event(shared_file file, page *p) : file_(std::move(file)), page_(p) {}
  shared_event(const shared_event &) = delete;
  shared_event &operator=(const shared_event &) = delete;
  ~shared_event();

  // The handle for other processes. It is void when the event is destroyed.
  CUipcEventHandle handle() const;

  std::uint64_t record();  // the number of a new recording, from 1
  void complete(std::uint64_t number);
  std::uint64_t last() const;  // the last recording; 0: none
  bool done(std::uint64_t number) const;

 private:
  shared_file file_;
  page *const page_;
};

}  // namespace hostcuda
