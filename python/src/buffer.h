// growable_buffer as the class GrowableBuffer.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "python/src/exports.h"
#include "python/src/guarded.h"
#include "stillmap/vmm/growable_buffer.h"

namespace stillmap::python {

class python_buffer : public guarded<growable_buffer> {
 public:
  explicit python_buffer(growable_buffer b)
      : guarded("GrowableBuffer", std::move(b)),
        ordinal_(
            with([](const growable_buffer &of) -> result<int> { return of.device().ordinal(); })),
        tag_(with([](const growable_buffer &of) -> result<std::string> { return of.tag(); })) {}

  // With a stream, new bytes are first used there. Raise BusyError where a view would become invalid,
  // and InvalidArgumentError where the address would change without `relocate`.
  void resize(std::size_t bytes, std::optional<stream_ref> s, bool relocate);
  void reserve(std::size_t bytes, std::optional<stream_ref> s, bool relocate);
  void shrink_to_fit(bool relocate);
  void commit(std::size_t offset, std::size_t bytes);

  // The whole buffer as bytes, and one more export where asked for.
  exported_array describe(bool count);

  int ordinal() const { return ordinal_; }
  const std::string &tag() const { return tag_; }

 private:
  const int ordinal_;
  const std::string tag_;
  std::optional<stream_ref> last_stream_;  // with the lock
};

void bind_buffer(nb::module_ &m);

}  // namespace stillmap::python
