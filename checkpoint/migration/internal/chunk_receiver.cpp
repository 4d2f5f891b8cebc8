#include "stillmap/checkpoint/migration/internal/chunk_receiver.h"

#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

constexpr std::size_t verify_bytes = std::size_t{32} << 20;

}  // namespace

result<chunk_receiver> chunk_receiver::create(const device &d, destination_memory &into,
                                              std::uint32_t chunk_bytes,
                                              const image::digest_key &key, bool read_back) {
  STILLMAP_ASSIGN_OR_RETURN(auto copier, checkpoint::batch_copier::create(d, 2));
  STILLMAP_ASSIGN_OR_RETURN(auto buffers,
                            checkpoint::host_memory::create(d, std::size_t{2} * chunk_bytes));
  chunk_receiver out(into, chunk_bytes, key, std::move(copier), std::move(buffers));
  if (read_back) {
    auto made = snapshot::chunk_digester::create(d, key);
    if (made) {
      out.digester_.emplace(std::move(*made));
    } else if (made.error().is(errc::device_lost)) {
      return tl::unexpected(made.error());
    }
  }
  return out;
}

chunk_receiver::~chunk_receiver() {
  for (std::size_t i = 0; i < copier_.streams(); ++i) {
    // A failed copy does not matter any more: the migration has failed, or its contents are
    // verified.
    (void)copier_.wait(i);
  }
}

status chunk_receiver::take(channel &from, const header &h, std::chrono::milliseconds timeout) {
  if (!round_) {
    STILLMAP_ASSIGN_OR_RETURN(max_round_chunks_, into_->begin_round());
    round_.emplace(*into_);
    round_chunks_ = 0;
  }
  if (++round_chunks_ > max_round_chunks_) {
    return make_error(errc::corrupt, "a round has more chunks than the layout", round_chunks_,
                      max_round_chunks_, error_unit::items);
  }
  STILLMAP_RETURN_IF_ERROR(receive(from, h, timeout));
  return unverified_.size() * chunk_bytes_ < verify_bytes ? status() : verify();
}

status chunk_receiver::receive(channel &from, const header &h, std::chrono::milliseconds timeout) {
  STILLMAP_ASSIGN_OR_RETURN(const virtual_range range, into_->range_of(h.number));
  buffer_ ^= 1;
  STILLMAP_RETURN_IF_ERROR(copier_.wait(buffer_));
  if (h.what == kind::zeros && h.body == 0) {
    STILLMAP_ASSIGN_OR_RETURN(const image::digest zeros, image::digest_of_zeros(key_, range.bytes));
    const bool expected = from.encrypted();
    unverified_.push_back(
        {h.number, range, expected ? h.digest : zeros, !expected || h.digest == zeros, expected});
    return copier_.clear(range, buffer_);
  }
  if (h.what != kind::chunk || h.body != range.bytes) {
    return make_error(errc::corrupt, "a chunk of the wrong size", h.body, range.bytes,
                      error_unit::bytes);
  }
  std::byte *const at = buffers_.data() + buffer_ * chunk_bytes_;
  STILLMAP_RETURN_IF_ERROR(from.receive({at, range.bytes}, timeout));
  const bool expected = from.encrypted();
  image::digest digest = h.digest;
  bool good = true;
  if (!digester_) {
    STILLMAP_ASSIGN_OR_RETURN(const image::digest found,
                              image::digest_of_contents(key_, {at, range.bytes}));
    good = !expected || found == digest;
    digest = found;
  }
  unverified_.push_back({h.number, range, digest, good, expected});
  return copier_.start(checkpoint::direction::to_device, range, at, buffer_);
}

status chunk_receiver::verify() {
  for (std::size_t i = 0; i < copier_.streams(); ++i) STILLMAP_RETURN_IF_ERROR(copier_.wait(i));
  if (digester_) {
    std::vector<virtual_range> ranges;
    for (const received_chunk &c : unverified_) ranges.push_back(c.at);
    STILLMAP_ASSIGN_OR_RETURN(const std::vector<image::digest> found,
                              digester_->digests_of(ranges));
    for (std::size_t i = 0; i < unverified_.size(); ++i) {
      received_chunk &c = unverified_[i];
      if (!c.expected) c.digest = found[i];
      c.good = c.good && found[i] == c.digest;
    }
  }
  for (const received_chunk &c : unverified_) {
    if (c.good) {
      into_->received(c.number, c.digest);
    } else {
      damaged_.push_back(c.number);
    }
  }
  unverified_.clear();
  return {};
}

result<std::vector<std::uint64_t>> chunk_receiver::end_round() {
  STILLMAP_RETURN_IF_ERROR(verify());
  round_.reset();
  return std::exchange(damaged_, {});
}

}  // namespace stillmap::migration
