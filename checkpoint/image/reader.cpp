#include "stillmap/checkpoint/image/reader.h"

#include <algorithm>
#include <cstring>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/internal/open_image.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::image {

reader::reader(std::shared_ptr<const open_image> image) : image_(std::move(image)) {}

const image::superblock &reader::superblock() const {
  return image_->superblock;
}
const image::manifest &reader::manifest() const {
  return image_->manifest;
}
std::span<const chunk_record> reader::chunks() const {
  return image_->table;
}
const image::digest_key &reader::digest_key() const {
  return image_->key;
}
std::optional<reader> reader::parent() const {
  if (!image_->parent) return std::nullopt;
  return reader(image_->parent);
}
unsigned reader::chain() const {
  return image_->chain;
}
const std::string &reader::path() const {
  return image_->path;
}
std::optional<verifying_key> reader::signer() const {
  return image_->signer;
}

status reader::read_chunk(std::size_t number, std::span<std::byte> to) const {
  const operation_scope scope("image::read_chunk");
  if (number >= image_->table.size()) {
    return checkpoint::in_file(make_error(errc::invalid_argument, "no chunk has this number",
                                          number, image_->table.size()),
                               path());
  }
  if (to.size() != image_->table[number].bytes) {
    return checkpoint::in_file(
        make_error(errc::invalid_argument, "the buffer is not of the chunk's size", to.size(),
                   image_->table[number].bytes, error_unit::bytes),
        path());
  }
  status ok = with_host_memory([&] {
    const open_image::source from = image_->resolve(number);
    auto scratch = from.image->take_scratch();
    auto loaded = from.image->load(from.record, to, *scratch, false);
    from.image->return_scratch(std::move(scratch));
    return loaded;
  });
  if (!ok) std::memset(to.data(), 0, to.size());
  return checkpoint::in_file(std::move(ok), path());
}

status reader::read(std::uint64_t offset, std::span<std::byte> to) const {
  const operation_scope scope("image::read");
  const std::uint64_t size = image_->superblock.contents_bytes;
  if (offset > size || to.size() > size - offset) {
    return checkpoint::in_file(
        make_error(errc::invalid_argument, "the range ends after the contents", offset + to.size(),
                   size, error_unit::bytes),
        path());
  }
  const std::span<std::byte> all = to;
  const auto &table = image_->table;
  auto at = std::upper_bound(table.begin(), table.end(), offset,
                             [](std::uint64_t o, const chunk_record &r) { return o < r.at; });
  checkpoint::aligned_memory piece;
  while (!to.empty()) {
    const auto number = static_cast<std::size_t>(at - table.begin()) - 1;
    const chunk_record &r = table[number];
    const std::uint64_t inside = offset - r.at;
    const std::size_t n = std::min<std::uint64_t>(to.size(), r.bytes - inside);
    status ok;
    if (n == r.bytes) {
      ok = read_chunk(number, to.first(n));
    } else if (ok = piece.grow(r.bytes); ok) {
      const auto room = piece.bytes().first(r.bytes);
      if (ok = read_chunk(number, room); ok) std::memcpy(to.data(), room.data() + inside, n);
    }
    if (!ok) {
      std::memset(all.data(), 0, all.size());
      return ok;
    }
    to = to.subspan(n);
    offset += n;
    ++at;
  }
  return {};
}

}  // namespace stillmap::image
