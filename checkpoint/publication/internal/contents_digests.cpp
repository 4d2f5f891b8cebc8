#include "stillmap/checkpoint/publication/internal/contents_digests.h"

#include <algorithm>

#include "stillmap/checkpoint/snapshot/chunk_digests.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {
namespace {

constexpr std::size_t preferred_chunk_bytes = std::size_t{2} << 20;

// The chunks of each page, at one of its places that the device may read.
result<std::vector<virtual_range>> chunks_of(const checkpoint::memory_layout &l,
                                             std::size_t chunk_bytes) {
  STILLMAP_ASSIGN_OR_RETURN(const std::vector<device_address> at, readable_addresses(l));
  std::vector<virtual_range> out;
  for (std::size_t page = 0; page < l.pages.size(); ++page) {
    const std::size_t bytes = l.pages[page].bytes;
    for (std::size_t done = 0; done < bytes; done += chunk_bytes) {
      out.push_back({at[page] + done, std::min(chunk_bytes, bytes - done)});
    }
  }
  return out;
}

}  // namespace

status compute_digests(const device &d, manifest &m) {
  STILLMAP_ASSIGN_OR_RETURN(const image::digest_key key, image::make_digest_key());
  auto digester = snapshot::chunk_digester::create(d, key);
  if (!digester && digester.error().is(errc::not_supported)) return {};
  if (!digester) return tl::unexpected(digester.error());
  STILLMAP_ASSIGN_OR_RETURN(const auto chunks, chunks_of(m.layout, preferred_chunk_bytes));
  STILLMAP_ASSIGN_OR_RETURN(m.digests, digester->digests_of(chunks));
  m.chunk_bytes = preferred_chunk_bytes;
  m.key = key;
  return {};
}

status check_digests(const device &d, const manifest &m, const checkpoint::memory_layout &l) {
  if (m.digests.empty()) {
    return make_error(errc::not_supported, "the publisher made no digests to compare with");
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto chunks, chunks_of(l, m.chunk_bytes));
  STILLMAP_ASSIGN_OR_RETURN(auto digester, snapshot::chunk_digester::create(d, m.key));
  STILLMAP_ASSIGN_OR_RETURN(const auto found, digester.digests_of(chunks));
  const auto [differs, expected] = std::mismatch(found.begin(), found.end(), m.digests.begin());
  if (differs == found.end()) return {};
  const auto chunk = static_cast<std::size_t>(differs - found.begin());
  return make_error(errc::corrupt, "the contents differ from their digest",
                    chunks[chunk].begin.value(), 0, error_unit::address);
}

}  // namespace stillmap::publication
