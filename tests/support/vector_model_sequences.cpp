// Generates sequences of vector operations from random numbers or from fuzzer input.
#include <random>

#include "tests/support/vector_model.h"

namespace stillmap::testing {
namespace {

struct vector_op_kind {
  const char *name;
  unsigned weight;
  std::vector<std::uint64_t> ranges;
};
const std::vector<vector_op_kind> &vector_op_kinds() {
  static const std::vector<vector_op_kind> all{{"push", 16, {2, 3000}},
                                               {"append", 10, {2, 200000}},
                                               {"append_async", 5, {2, 20000}},
                                               {"append_device", 5, {2, 100000}},
                                               {"append_self", 3, {2}},
                                               {"assign", 4, {2, 100000}},
                                               {"insert", 8, {2, 1u << 20, 5000}},
                                               {"insert_device", 4, {2, 1u << 20, 20000}},
                                               {"erase", 8, {2, 1u << 20, 50000}},
                                               {"resize", 6, {2, 300000}},
                                               {"grow_raw", 3, {2, 50000}},
                                               {"reserve", 3, {2, 400000}},
                                               {"pop", 5, {2}},
                                               {"set", 6, {2, 1u << 20}},
                                               {"get", 6, {2, 1u << 20}},
                                               {"clear", 2, {2}},
                                               {"shrink", 4, {2}},
                                               {"flush", 3, {2}},
                                               {"stream", 4, {2, 3}},
                                               {"move", 3, {2, 2}},
                                               {"fault", 8, {10, 8}},
                                               {"check", 8, {2}}};
  return all;
}

}  // namespace

op_sequence generate_vector_ops(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 dice(seed * 31 + 5);
  op_sequence out{{"machine",
                   {dice() % 3 == 0 ? 16u : 64u, dice() % 8 == 0 ? 0 : seed + 1,
                    seed % std::size(vector_element_sizes)}}};
  unsigned total = 0;
  for (const vector_op_kind &k : vector_op_kinds()) total += k.weight;
  while (out.size() < count) {
    std::uint64_t draw = dice() % total;
    for (const vector_op_kind &k : vector_op_kinds()) {
      if (draw >= k.weight) {
        draw -= k.weight;
        continue;
      }
      op o{k.name, {}};
      for (const std::uint64_t range : k.ranges) o.args.push_back(dice() % range);
      out.push_back(std::move(o));
      break;
    }
  }
  return out;
}

op_sequence vector_ops_from_bytes(const unsigned char *data, std::size_t size) {
  std::size_t at = 0;
  const auto next = [&](std::uint64_t range) {
    std::uint64_t v = 0;
    for (std::uint64_t r = range - 1; r != 0; r >>= 8) v = v << 8 | (at < size ? data[at++] : 0);
    return v % range;
  };
  op_sequence out{{"machine", {16 + next(64), next(256), next(5)}}};
  while (at < size && out.size() < 120) {
    const vector_op_kind &k = vector_op_kinds()[next(vector_op_kinds().size())];
    op o{k.name, {}};
    for (const std::uint64_t range : k.ranges) o.args.push_back(next(range));
    out.push_back(std::move(o));
  }
  return out;
}

}  // namespace stillmap::testing
