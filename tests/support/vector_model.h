// device_vector<T> against std::vector<T>: random operations on two vectors of one small device,
// with some driver calls failing. A failed operation must leave the vector unchanged. Model and fuzz
// tests run it.
#pragma once

#include <string>

#include "tests/support/op_sequence.h"

namespace stillmap::testing {

// The element types, by size in bytes. 1000 is larger than half the staging memory of the test.
inline constexpr std::size_t vector_element_sizes[] = {1, 3, 8, 24, 1000};

// The first operation is `machine MIB SEED ELEMENT`: ELEMENT indexes vector_element_sizes.
std::optional<op_failure> run_vector_model(const op_sequence &ops);
op_sequence generate_vector_ops(std::uint64_t seed, std::size_t count);
op_sequence vector_ops_from_bytes(const unsigned char *data, std::size_t size);

}  // namespace stillmap::testing
