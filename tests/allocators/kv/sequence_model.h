// A naive model of a sequence_arena: it performs random operations and keeps the tokens of each sequence beside the
// arena. The first difference fails the test.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "stillmap/allocators/kv/sequence_arena.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::testing {

struct sequence_model_options {
  kv::shape shape{};
  std::size_t longest = 1, sequences = 1, spare_bytes = 0;
  std::uint32_t layers_per_range = 0;
  bool contents = true;  // writes and checks every byte
};

class sequence_model {
 public:
  sequence_model(const device &d, const sequence_model_options &o, unsigned seed);
  // Random operations, until a check has failed.
  void run(std::size_t operations);
  // Removes everything, and checks that nothing is left.
  void end();
  const kv::sequence_arena &arena() const { return *arena_; }

 private:
  struct sequence {
    kv::sequence_id id;
    std::vector<std::uint64_t> tokens;  // what the bytes of each were made of
    std::size_t wanted = 0;             // by reserve()
    std::size_t shared = 0;  // tokens that it has in common with a fork: not written any more
    bool begun = true;       // a step has begun since it was made
  };

  void operate();
  void step();
  void add();
  void fork();
  void write(sequence &s);
  void shrink(sequence &s);
  void remove(std::size_t i);
  void check_contents(const sequence &s) const;
  void check_contents() const;
  template <class Act>
  void for_each_tensor(const sequence &s, std::size_t token, const Act &act) const;

  const device device_;
  const sequence_model_options options_;
  std::mt19937_64 random_;
  stream stream_;
  std::unique_ptr<kv::sequence_arena> arena_;
  std::vector<sequence> live_;
  std::uint64_t next_value_ = 1;
};

}  // namespace stillmap::testing
