// A key-value cache for many requests. Each request has a slot of addresses for the longest possible
// sequence, and memory only for the tokens that it has. Memory of a finished request is reused by
// others, without a call that creates memory.
#include <cstdint>

#include "examples/example.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;

namespace {

class kv_cache {
 public:
  kv_cache(const device &d, std::size_t requests, std::size_t longest)
      : device_(d),
        slot_bytes_(round_up(longest, d.capabilities().page_bytes)),
        buffer_(example::must(growable_buffer::create(
            d, {.reserve_bytes = requests * slot_bytes_, .tag = "kv cache"}))),
        used_(requests, 0) {}

  device_address slot(std::size_t request) const {
    return buffer_.address() + request * slot_bytes_;
  }

  // Appends a token. A kernel reads all tokens of a request as one array.
  void append(std::size_t request, const std::vector<std::uint16_t> &token) {
    const std::size_t bytes = token.size() * sizeof(token[0]), page = buffer_.page_bytes();
    const std::size_t wanted = round_up(used_[request] + bytes, page);
    // Costs no driver call where the range is committed already.
    example::must(buffer_.commit(request * slot_bytes_, wanted));
    example::write(device_, slot(request) + used_[request], token.data(), bytes);
    used_[request] += bytes;
  }

  // `idle` passes when kernels no longer read the request. The host does not wait for it.
  void finish(std::size_t request, const fence &idle) {
    const std::size_t bytes = round_up(used_[request], buffer_.page_bytes());
    example::must(buffer_.decommit(request * slot_bytes_, bytes, idle));
    used_[request] = 0;
  }

  std::size_t reserved() const { return buffer_.reserved(); }
  std::size_t mapped() const { return buffer_.mapped_bytes(); }

 private:
  device device_;
  std::size_t slot_bytes_;
  growable_buffer buffer_;
  std::vector<std::size_t> used_;
};

}  // namespace

int main() {
  const device d = example::open_mapping_device("a sparse cache");
  constexpr std::size_t requests = 8, longest = std::size_t{64} << 20;
  kv_cache cache(d, requests, longest);
  const stream work = example::must(stream::create(d));

  const std::vector<std::uint16_t> token(128 * 1024, 7);  // 256 KiB of keys and values
  for (std::size_t r = 0; r < requests; ++r) {
    for (std::size_t t = 0; t < 12 * (r + 1); ++t) cache.append(r, token);
  }
  std::printf("%zu MiB of addresses, %zu MiB of memory\n", cache.reserved() >> 20,
              cache.mapped() >> 20);
  example::check(cache.mapped() < cache.reserved() / 2, "memory follows the tokens");

  const device_address seventh = cache.slot(7);
  const std::uint64_t created = d.pool()->stats().pages_created;
  cache.finish(6, example::must(fence::after(d, work)));
  for (std::size_t t = 0; t < 60; ++t) cache.append(0, token);
  example::check(d.pool()->stats().pages_created == created,
                 "a request grew with memory of a finished one: no page was created");

  example::check(cache.slot(7) == seventh, "no request moved");
  const std::size_t all = 12 * 8 * token.size();
  example::check(
      example::read<std::uint16_t>(d, seventh, all) == std::vector<std::uint16_t>(all, 7),
      "the longest request still has all its tokens");
  return 0;
}
