// A caching allocator that checks block contents. Work on a block's stream writes the block when it
// is allocated and reads it when it is freed: an overlap, or a page that moved too early, shows as
// a wrong byte.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/driver.h"

namespace stillmap::testing {

class checked_heap {
 public:
  checked_heap(const device &d, caching_allocator_options options = {});
  checked_heap(const device &d, std::unique_ptr<caching_allocator> heap);
  ~checked_heap();

  struct block {
    std::size_t bytes = 0;  // as asked for
    std::size_t usable = 0;
    stream_ref stream;
    unsigned char value = 0;
  };

  // Writes the block. What is wrong with the block itself goes to wrong().
  result<void *> allocate(std::size_t bytes, stream_ref s, allocate_options options = {});
  // Reads the block, then frees it. What fails to be freed stays.
  status free(void *at);
  // Work on `s` after what is queued on the block's own stream, then record_use.
  status use_on(void *at, stream_ref s);
  status free_on(void *at, stream_ref s);  // use_on without record_use, then free(at, s)
  // Queues a read of a block.
  void read(void *at, stream_ref s);

  // Whether blocks are written and read. Not on a device that has no bytes.
  bool contents = true;

  // Called around every call of the allocator, not around the work of the test itself.
  std::function<void()> before_call = [] {};
  std::function<void()> after_call = [] {};

  // Waits for the device and compares all that was read.
  void settle();
  status trim(std::size_t keep);
  // Frees everything, without reading.
  void drop_all();
  // Gives up the allocator: nothing but the destructor may be called.
  std::unique_ptr<caching_allocator> release() { return std::move(heap_); }

  const std::map<std::uint64_t, block> &blocks() const { return blocks_; }
  caching_allocator &heap() { return *heap_; }
  std::size_t live() const;                // bytes of its blocks, rounded up
  std::string &wrong() { return wrong_; }  // empty: nothing so far
  // The allocator's books against what was handed out.
  std::string disagreement();

 private:
  struct pending {
    std::size_t staged;
    unsigned char value;
    std::uint64_t at;
  };
  template <class Call>
  auto called(Call call) {
    before_call();
    auto outcome = call();
    after_call();
    return outcome;
  }
  void order(stream_ref from, stream_ref to);
  status freed(void *at, status outcome);
  void must(const status &s);

  device device_;
  std::unique_ptr<caching_allocator> heap_;
  std::map<std::uint64_t, block> blocks_;
  std::vector<pending> reads_;
  unsigned char *staging_ = nullptr;
  std::size_t staged_ = 0;
  unsigned char next_value_ = 1;
  std::string wrong_;
};

}  // namespace stillmap::testing
