// Strided views of the addresses of a KV arena, for other libraries: the class KVTensor.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "python/src/exports.h"

namespace stillmap::python {

// A tensor of an arena: of a layer, or of a sequence in it.
struct kv_place {
  std::uint32_t layer = 0;
  std::optional<std::uint32_t> tensor{};    // none: all tensors of the layer
  std::optional<std::uint64_t> sequence{};  // as Python has it
};

// An arena, as its views see it.
class kv_exporter {
 public:
  virtual ~kv_exporter() = default;
  // The whole tensor, and one more export where asked for. Raises InvalidArgumentError for a closed arena, and where
  // there is no such tensor or sequence.
  virtual exported_array describe(const kv_place &place, bool count) = 0;
  virtual std::atomic<int> &count_of_exports() = 0;
  virtual int ordinal() const = 0;
};

// A view of a tensor of `arena`, which is the object `owner`. Raises as describe().
nb::object kv_tensor_of(nb::object owner, kv_exporter &arena, const kv_place &place);

void bind_kv_tensor(nb::module_ &m);

}  // namespace stillmap::python
