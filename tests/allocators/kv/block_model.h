// A naive model of a block_arena: it performs random operations and keeps beside the arena what each block must be and
// hold. The first difference fails the test.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::testing {

struct block_model_options {
  kv::shape shape{};
  std::size_t tokens_per_block = 1, blocks = 1, spare_blocks = 0;
  std::uint32_t layers_per_range = 0;
  bool contents = true;  // writes and checks every byte
};

class block_model {
 public:
  block_model(const device &d, const block_model_options &o, unsigned seed);
  // Random operations, until a check has failed.
  void run(std::size_t operations);
  // Frees everything, and checks that nothing is left.
  void end();
  const kv::block_arena &arena() const { return *arena_; }

 private:
  struct block {
    std::uint32_t references = 0;
    bool cached = false;
    std::uint64_t value = 0;  // what its bytes were made of
  };

  void operate();
  void step(std::size_t free_blocks);
  void allocate();
  void compact();
  void evict();
  void check_refusals();
  void check_counts();
  void write(kv::block_id b, std::uint64_t value);
  void check_contents(kv::block_id b);
  void check_contents();
  void made_free(kv::block_id b);
  kv::block_id any(const std::vector<kv::block_id> &of) { return of[random_() % of.size()]; }
  std::vector<kv::block_id> with(bool used, bool cached) const;

  const device device_;
  const block_model_options options_;
  std::mt19937_64 random_;
  stream stream_;
  std::unique_ptr<kv::block_arena> arena_;
  std::map<kv::block_id, block> live_;
  std::uint64_t next_value_ = 1;
  std::size_t wanted_ = 0;  // by the last prepare()
};

}  // namespace stillmap::testing
