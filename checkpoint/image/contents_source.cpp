#include "stillmap/checkpoint/image/contents_source.h"

#include "stillmap/vmm/base/operation.h"

namespace stillmap::image {

contents_source::~contents_source() = default;

std::optional<digest> contents_source::digest_of(std::uint64_t /*offset*/, std::size_t /*bytes*/) {
  return std::nullopt;
}

result<bytes_view> contents_in_memory::chunk(std::uint64_t offset, std::span<std::byte> room) {
  const operation_scope scope("contents_in_memory::chunk");
  if (offset > contents_.size() || room.size() > contents_.size() - offset) {
    return make_error(errc::invalid_argument, "the contents are smaller than the manifest's pages",
                      offset + room.size(), contents_.size(), error_unit::bytes);
  }
  return contents_.subspan(offset, room.size());
}

}  // namespace stillmap::image
