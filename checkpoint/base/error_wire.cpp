#include "stillmap/checkpoint/base/error_wire.h"

#include <algorithm>

#include "stillmap/checkpoint/base/wire_format.h"

namespace stillmap::checkpoint {

std::vector<std::byte> encode(const error &e) {
  errc code = errc::not_supported;  // the driver's and the system's other errors
  for (int c = 1; c <= static_cast<int>(errc::operation_canceled); ++c) {
    if (e.is(static_cast<errc>(c))) code = static_cast<errc>(c);
  }
  wire_writer w(largest_peer_error / 2);
  w(static_cast<std::uint32_t>(code), static_cast<std::uint32_t>(e.unit), e.value,
    std::string(e.operation) + ": " + e.reason);
  return w.take();
}

error decode_peer_error(std::span<const std::byte> from) {
  wire_reader r(from);
  errc code = errc::corrupt;
  error_unit unit = error_unit::none;
  std::uint64_t value = 0;
  std::string text;
  r(up_to(code, errc::operation_canceled, errc::out_of_memory), up_to(unit, error_unit::items),
    value, text);
  if (!r.done()) return make_error(errc::corrupt, peer_refused).value();
  // It may end up in a terminal.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  const error e = make_error(code, peer_refused, value, 0, unit).value();
  return e.with({.cause = std::move(text)});
}

}  // namespace stillmap::checkpoint
