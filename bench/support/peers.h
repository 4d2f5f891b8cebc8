// The allocators that are compared, all with the same two calls, each as its users have it: the
// host's as they are, the segment policy behind one lock.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <vector>

#include "bench/replay/replay_target.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::bench {

inline constexpr int most_threads = 8;

// The device and its streams; outlives the peers on it.
struct peer_machine {
  explicit peer_machine(device d);
  device dev;
  std::vector<stream> streams;  // one for each thread
};

class stillmap_peer {
 public:
  static constexpr const char *name = "stillmap";
  static constexpr bool on_device = true;
  explicit stillmap_peer(peer_machine &m);
  void *allocate(std::size_t bytes, int thread) {
    const auto got = heap_->allocate(bytes, machine_.streams[static_cast<std::size_t>(thread)]);
    return got ? *got : nullptr;
  }
  bool free(void *block, std::size_t, int thread) {
    return heap_->free(block, machine_.streams[static_cast<std::size_t>(thread)]).has_value();
  }
  const char *missing() const { return heap_ == nullptr ? "the device cannot map pages" : nullptr; }

 private:
  peer_machine &machine_;
  std::unique_ptr<caching_allocator> heap_;
};

class segments_peer {
 public:
  static constexpr const char *name = "segments";
  static constexpr bool on_device = true;
  explicit segments_peer(peer_machine &m);
  ~segments_peer();
  void *allocate(std::size_t bytes, int thread) {
    const std::lock_guard lock(mutex_);
    const auto got = policy_->allocate(bytes, machine_.streams[static_cast<std::size_t>(thread)]);
    return got ? *got : nullptr;
  }
  bool free(void *block, std::size_t, int) {
    const std::lock_guard lock(mutex_);
    return policy_->free(block).has_value();
  }
  const char *missing() const { return policy_ == nullptr ? "it could not be made" : nullptr; }

 private:
  peer_machine &machine_;
  std::mutex mutex_;
  std::unique_ptr<replay::replay_target> policy_;
};

class malloc_peer {
 public:
  static constexpr const char *name = "malloc";
  static constexpr bool on_device = false;
  explicit malloc_peer(peer_machine &) {}
  void *allocate(std::size_t bytes, int) { return std::malloc(bytes); }
  bool free(void *block, std::size_t, int) {
    std::free(block);
    return true;
  }
  const char *missing() const { return nullptr; }
};

// Loaded at run time: a linked mimalloc would replace malloc.
class mimalloc_peer {
 public:
  static constexpr const char *name = "mimalloc";
  static constexpr bool on_device = false;
  explicit mimalloc_peer(peer_machine &);
  void *allocate(std::size_t bytes, int) { return malloc_(bytes); }
  bool free(void *block, std::size_t, int) {
    free_(block);
    return true;
  }
  const char *missing() const {
    return malloc_ == nullptr ? "there is no libmimalloc.so.2" : nullptr;
  }

 private:
  void *(*malloc_)(std::size_t) = nullptr;
  void (*free_)(void *) = nullptr;
};

class pmr_peer {
 public:
  static constexpr const char *name = "pmr pool";
  static constexpr bool on_device = false;
  explicit pmr_peer(peer_machine &) {}
  void *allocate(std::size_t bytes, int) { return pool_.allocate(bytes); }
  bool free(void *block, std::size_t bytes, int) {
    pool_.deallocate(block, bytes);
    return true;
  }
  const char *missing() const { return nullptr; }

 private:
  std::pmr::synchronized_pool_resource pool_;
};

}  // namespace stillmap::bench
