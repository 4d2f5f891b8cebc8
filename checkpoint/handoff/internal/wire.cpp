#include "stillmap/checkpoint/handoff/internal/wire.h"

#include "stillmap/checkpoint/base/wire_format.h"

namespace stillmap::handoff {
namespace {

void fields(auto &wire, auto &h) {
  wire(checkpoint::up_to(h.as, role::receiver, role::sender), h.device, h.page_bytes);
}

}  // namespace

std::vector<std::byte> encode(const hello &h) {
  checkpoint::wire_writer w;
  fields(w, h);
  return w.take();
}

result<hello> decode_hello(std::span<const std::byte> from) {
  checkpoint::wire_reader r(from);
  hello h;
  fields(r, h);
  if (r.done()) return h;
  return make_error(errc::corrupt, "not a valid hello message");
}

}  // namespace stillmap::handoff
