#include "python/src/buffer.h"

#include "stillmap/vmm/internal/try.h"

namespace stillmap::python {

void python_buffer::resize(std::size_t bytes, std::optional<stream_ref> s) {
  with([&](growable_buffer &b) -> status {
    if (bytes < b.size()) STILLMAP_RETURN_IF_ERROR(refuse_exported());
    STILLMAP_RETURN_IF_ERROR(refuse_move(b, bytes));
    STILLMAP_RETURN_IF_ERROR(s ? b.resize(bytes, *s) : b.resize(bytes));
    if (s) last_stream_ = s;
    return {};
  });
}

void python_buffer::reserve(std::size_t bytes, std::optional<stream_ref> s) {
  with([&](growable_buffer &b) -> status {
    STILLMAP_RETURN_IF_ERROR(refuse_move(b, bytes));
    STILLMAP_RETURN_IF_ERROR(s ? b.reserve(bytes, *s) : b.reserve(bytes));
    if (s) last_stream_ = s;
    return {};
  });
}

exported_array python_buffer::describe(bool count) {
  return with([&](const growable_buffer &b) -> result<exported_array> {
    if (count) count_export();
    return exported_array{b.address().value(), b.size(), {'u', 1, "B"}, ordinal_, last_stream_};
  });
}

}  // namespace stillmap::python
