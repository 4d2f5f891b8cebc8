#include "tests/checkpoint/image/forged.h"

#include <algorithm>

#include "stillmap/checkpoint/image/internal/wire.h"

namespace stillmap::image {

forged forged::of(const std::vector<std::byte> &bytes) {
  forged f;
  f.head = decode_superblock(bytes_view(bytes).first(block_bytes)).value();
  const auto part = [&](const file_range &r) {
    return bytes_view(bytes).subspan(r.offset, r.bytes);
  };
  auto decoded = decode_chunk_table(part(f.head.chunk_table), f.head).value();
  f.table = std::move(decoded.records);
  f.key = decoded.key;
  const auto what = part(f.head.manifest);
  f.what.assign(what.begin(), what.end());
  f.extents.assign(bytes.begin() + block_bytes,
                   bytes.begin() + static_cast<long>(f.head.chunk_table.offset));
  return f;
}

void forged::set_manifest(const manifest &m) {
  what = encode(m).value();
}

std::vector<std::byte> forged::bytes(const std::function<void(superblock &)> &last) {
  std::vector<std::byte> b(block_bytes);
  const auto add = [&](bytes_view part) {
    const file_range r{b.size(), part.size()};
    b.insert(b.end(), part.begin(), part.end());
    b.resize(to_block(b.size()));
    return r;
  };
  add(extents);
  const auto records = encode(table, key);
  head.chunk_table = add(records);
  head.chunk_table_sum = sha256_of(records);
  head.manifest = add(what);
  head.manifest_sum = sha256_of(what);
  head.chunks = table.size();
  head.file_bytes = b.size();
  superblock s = head;
  if (last) last(s);
  const auto block = encode(s);
  std::copy(block.begin(), block.end(), b.begin());
  return b;
}

void forged::reseal(std::vector<std::byte> &bytes) {
  const std::span<std::byte> b(bytes);
  store(b, 4048, sha256_of(b.first(4048)).bytes);
  store(b, 4080, digest_of(b.first(4080)).bytes);
}

}  // namespace stillmap::image
