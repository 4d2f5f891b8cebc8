// A TCP proxy between two ends of a migration, which delays, divides, cuts or stops what passes.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::migration::testing {

struct link_fault {
  const char *name = "no fault";
  int delay_ms = 0;  // of each piece
  std::size_t piece = 1 << 16;
  // After so many bytes, counted over all connections, in one direction.
  std::size_t forward = SIZE_MAX, backward = SIZE_MAX;
  bool stops = false;  // then nothing passes, and nobody is told; otherwise connections are closed
};

class faulty_link {
 public:
  // Connections to address() go to `target`, "127.0.0.1:4711".
  explicit faulty_link(std::string target, link_fault fault = {});
  faulty_link(const faulty_link &) = delete;
  ~faulty_link();

  std::string address() const;
  // From now on everything passes, on new connections.
  void heal();
  std::size_t forward_bytes() const { return passed_[0]; }
  std::size_t backward_bytes() const { return passed_[1]; }

 private:
  struct pair {
    owned_fd near, far;
    std::jthread forward, backward;
  };
  void accept_all();
  void pass(pair &p, bool forward);

  const std::string target_;
  const link_fault fault_;
  owned_fd listener_;
  std::atomic<bool> healed_{false}, broken_{false}, over_{false};
  std::atomic<std::size_t> passed_[2]{0, 0};
  std::mutex mutex_;
  std::list<pair> pairs_;
  std::jthread acceptor_;
};

}  // namespace stillmap::migration::testing
