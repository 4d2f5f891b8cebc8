#include "stillmap/checkpoint/handoff/internal/wire.h"

#include "stillmap/checkpoint/common/internal/wire_format.h"

namespace stillmap::handoff {

std::vector<std::byte> encode(const hello &h) {
  checkpoint::field_writer w;
  w.u32(static_cast<std::uint32_t>(h.as));
  for (const unsigned char c : h.device) w.number(c, 1);
  w.u64(h.page_bytes);
  return w.take();
}

result<hello> decode_hello(std::span<const std::byte> from) {
  checkpoint::field_reader r(from);
  hello h;
  const std::uint32_t as = r.u32();
  for (unsigned char &c : h.device) c = static_cast<unsigned char>(r.number(1));
  h.page_bytes = r.u64();
  if (!r.done() || as < 1 || as > 2) {
    return make_error(errc::corrupt, "handoff::decode_hello", "the greeting makes no sense");
  }
  h.as = static_cast<role>(as);
  return h;
}

}  // namespace stillmap::handoff
