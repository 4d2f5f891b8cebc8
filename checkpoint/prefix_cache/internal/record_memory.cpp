#include "stillmap/checkpoint/prefix_cache/internal/record_memory.h"

#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::prefix_cache {

result<growable_buffer> write_record(const device &d, const std::string &tag,
                                     std::span<const std::byte> bytes) {
  if (bytes.size() > max_table_bytes) {
    return make_error(errc::invalid_argument,
                      "a handoff cannot have as many entries: use shorter keys, or send fewer",
                      bytes.size(), max_table_bytes, error_unit::bytes);
  }
  const std::uint64_t length = bytes.size();
  STILLMAP_ASSIGN_OR_RETURN(
      auto pool, page_pool::create(d, {.exportable = handle_type::posix_fd, .keep_free = 0}));
  STILLMAP_ASSIGN_OR_RETURN(
      growable_buffer out,
      growable_buffer::create(
          d, {.reserve_bytes = sizeof length + length, .tag = tag, .pools = {std::move(pool)}}));
  const stream_ref stream = stream_ref::legacy();
  STILLMAP_RETURN_IF_ERROR(out.resize(sizeof length + length, stream));
  STILLMAP_RETURN_IF_ERROR(out.copy_from_host(0, &length, sizeof length, stream));
  STILLMAP_RETURN_IF_ERROR(out.copy_from_host(sizeof length, bytes.data(), length, stream));
  return out;
}

result<std::vector<std::byte>> read_record(const checkpoint::restored_memory &from,
                                           const std::string &tag) {
  const std::vector<virtual_range> at = from.tagged(tag);
  if (at.size() != 1) {
    return make_error(errc::invalid_argument, "the memory has no prefix table, or several",
                      at.size(), 1, error_unit::items);
  }
  const std::size_t there = from.layout().mapped_bytes(at.front());
  const context_guard guard(from.device().driver(), from.device().context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  std::uint64_t length = 0;
  const auto too_long = [&] { return sizeof length > there || length > there - sizeof length; };
  if (!too_long()) {
    STILLMAP_RETURN_IF_ERROR(
        from.device().driver().copy_to_host(&length, at.front().begin, sizeof length));
  }
  if (too_long() || length > max_table_bytes) {
    return make_error(errc::corrupt, "the prefix table is longer than its memory", length, there,
                      error_unit::bytes);
  }
  std::vector<std::byte> bytes(length);
  STILLMAP_RETURN_IF_ERROR(
      from.device().driver().copy_to_host(bytes.data(), at.front().begin + sizeof length, length));
  return bytes;
}

}  // namespace stillmap::prefix_cache
