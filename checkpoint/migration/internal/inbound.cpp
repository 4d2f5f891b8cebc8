#include "stillmap/checkpoint/migration/internal/inbound.h"

namespace stillmap::migration {
namespace {

constexpr const char *op = "migration::receive";
constexpr std::size_t looked_at_once = std::size_t{32} << 20;

}  // namespace

result<inbound> inbound::create(const device &d, incoming &into, std::uint32_t chunk_bytes,
                                bool read_back) {
  auto by = checkpoint::transfer::create(d, 2);
  if (!by) return tl::unexpected(by.error());
  auto room = checkpoint::host_memory::create(d, std::size_t{2} * chunk_bytes);
  if (!room) return tl::unexpected(room.error());
  inbound out(into, chunk_bytes, std::move(*by), std::move(*room));
  if (read_back) {
    auto made = snapshot::chunk_digester::create(d);
    if (made) {
      out.reads_back_.emplace(std::move(*made));
    } else if (made.error().is(errc::device_lost)) {
      return tl::unexpected(made.error());
    }
  }
  return out;
}

inbound::~inbound() {
  for (std::size_t i = 0; i < by_.streams(); ++i) (void)by_.wait(i);
}

status inbound::take(channel &from, const header &h, patience wait) {
  if (!round_) {
    const auto chunks = into_->begin_round();
    if (!chunks) return tl::unexpected(chunks.error());
    round_.emplace(*into_);
    chunks_ = *chunks;
    came_ = 0;
  }
  if (++came_ > chunks_) {
    return make_error(errc::corrupt, op, "more chunks in a round than there are", came_, chunks_);
  }
  if (status s = land(from, h, wait); !s) return s;
  return pieces_.size() * chunk_bytes_ < looked_at_once ? status() : look();
}

status inbound::land(channel &from, const header &h, patience wait) {
  const auto place = into_->place_of(h.number);
  if (!place) return tl::unexpected(place.error());
  buffer_ ^= 1;
  if (status s = by_.wait(buffer_); !s) return s;  // what is in the buffer is on its way
  if (h.what == kind::zeros && h.body == 0) {
    const bool good = h.digest == image::digest_of_zeros(place->bytes);
    pieces_.push_back({h.number, *place, h.digest, good});
    return by_.clear(*place, buffer_);
  }
  if (h.what != kind::chunk || h.body != place->bytes) {
    return make_error(errc::corrupt, op, "a chunk is not of its size", h.body, place->bytes);
  }
  std::byte *const at = room_.data() + buffer_ * chunk_bytes_;
  if (status s = from.receive({at, place->bytes}, wait); !s) return s;
  const bool good = reads_back_ || image::digest_of_contents({at, place->bytes}) == h.digest;
  pieces_.push_back({h.number, *place, h.digest, good});
  return by_.start(checkpoint::direction::to_device, *place, at, buffer_);
}

status inbound::look() {
  for (std::size_t i = 0; i < by_.streams(); ++i) {
    if (status s = by_.wait(i); !s) return s;
  }
  if (reads_back_) {
    std::vector<virtual_range> places;
    for (const piece &p : pieces_) places.push_back(p.at);
    const auto seen = reads_back_->digests_of(places);
    if (!seen) return tl::unexpected(seen.error());
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      pieces_[i].good = pieces_[i].good && (*seen)[i] == pieces_[i].digest;
    }
  }
  for (const piece &p : pieces_) {
    if (p.good) {
      into_->landed(p.number, p.digest);
    } else {
      bad_.push_back(p.number);
    }
  }
  pieces_.clear();
  return {};
}

result<std::vector<std::uint64_t>> inbound::through() {
  if (status s = look(); !s) return tl::unexpected(s.error());
  round_.reset();
  return std::exchange(bad_, {});
}

}  // namespace stillmap::migration
