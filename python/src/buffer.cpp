#include "python/src/buffer.h"

#include "stillmap/vmm/base/try.h"

namespace stillmap::python {

void python_buffer::resize(std::size_t bytes, std::optional<stream_ref> s, bool relocate) {
  with([&](growable_buffer &b) -> status {
    if (bytes < b.size()) STILLMAP_RETURN_IF_ERROR(refuse_exported());
    STILLMAP_RETURN_IF_ERROR(refuse_move("GrowableBuffer.resize", b, bytes, relocate));
    STILLMAP_RETURN_IF_ERROR(s ? b.resize(bytes, *s) : b.resize(bytes));
    if (s) last_stream_ = s;
    return {};
  });
}

void python_buffer::reserve(std::size_t bytes, std::optional<stream_ref> s, bool relocate) {
  with([&](growable_buffer &b) -> status {
    STILLMAP_RETURN_IF_ERROR(refuse_move("GrowableBuffer.reserve", b, bytes, relocate));
    STILLMAP_RETURN_IF_ERROR(s ? b.reserve(bytes, *s) : b.reserve(bytes));
    if (s) last_stream_ = s;
    return {};
  });
}

void python_buffer::shrink_to_fit(bool relocate) {
  with([&](growable_buffer &b) -> status {
    STILLMAP_RETURN_IF_ERROR(refuse_shrink("GrowableBuffer.shrink_to_fit", b, relocate));
    return b.shrink_to_fit();
  });
}

void python_buffer::commit(std::size_t offset, std::size_t bytes) {
  with([&](growable_buffer &b) -> status {
    // Without mapped pages it grows the buffer; elsewhere the buffer checks the range.
    if (!b.in_place() && bytes <= SIZE_MAX - offset) {
      STILLMAP_RETURN_IF_ERROR(refuse_move("GrowableBuffer.commit", b, offset + bytes, false));
    }
    return b.commit(offset, bytes);
  });
}

exported_array python_buffer::describe(bool count) {
  return with([&](const growable_buffer &b) -> result<exported_array> {
    show_address();
    if (count) count_export();
    return exported_array{b.address().value(), b.size(), {'u', 1, "B"}, ordinal_, last_stream_};
  });
}

}  // namespace stillmap::python
