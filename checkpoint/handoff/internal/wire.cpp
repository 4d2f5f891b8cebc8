#include "stillmap/checkpoint/handoff/internal/wire.h"

#include "stillmap/checkpoint/common/internal/wire_format.h"

namespace stillmap::handoff {

std::vector<std::byte> encode(const hello &h) {
  checkpoint::wire_writer w;
  w.u32(static_cast<std::uint32_t>(h.as));
  for (const unsigned char c : h.device) w.number(c, 1);
  w.u64(h.page_bytes);
  return w.take();
}

result<hello> decode_hello(std::span<const std::byte> from) {
  checkpoint::wire_reader r(from);
  hello h;
  h.as = r.one_of(role::receiver, role::sender);
  for (unsigned char &c : h.device) c = static_cast<unsigned char>(r.number(1));
  h.page_bytes = r.u64();
  if (!r.done()) {
    return make_error(errc::corrupt, "handoff::decode_hello", "not a valid hello message");
  }
  return h;
}

}  // namespace stillmap::handoff
