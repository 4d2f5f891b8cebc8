#include "stillmap/checkpoint/image/reader.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "stillmap/checkpoint/image/internal/reader_internal.h"
#include "stillmap/checkpoint/image/internal/wire.h"

namespace stillmap::image {
namespace {

constexpr const char *op = "image::read";

tl::unexpected<failure> pass_on(failure f) {
  return tl::unexpected<failure>(std::move(f));
}

outcome<std::span<std::byte>> at_least(aligned_memory &m, std::size_t bytes) {
  if (m.bytes().size() < bytes) {
    auto more = aligned_memory::create(bytes);
    if (!more) return pass_on(more.error());
    m = std::move(*more);
  }
  return m.bytes().first(bytes);
}

}  // namespace

reader::reader(std::shared_ptr<const core> c) : core_(std::move(c)) {}

const superblock &reader::head() const {
  return core_->head;
}
const manifest &reader::what() const {
  return core_->what;
}
std::span<const chunk_record> reader::chunks() const {
  return core_->table;
}
std::optional<reader> reader::parent() const {
  if (!core_->parent) return std::nullopt;
  return reader(core_->parent);
}
unsigned reader::chain() const {
  return core_->chain;
}
const std::string &reader::path() const {
  return core_->path;
}
std::optional<verifying_key> reader::signer() const {
  return core_->signer;
}

std::unique_ptr<chunk_scratch> reader::core::take_scratch() const {
  const std::lock_guard lock(mutex);
  if (spare.empty()) return std::make_unique<chunk_scratch>();
  auto s = std::move(spare.back());
  spare.pop_back();
  return s;
}

void reader::core::give_scratch(std::unique_ptr<chunk_scratch> s) const {
  const std::lock_guard lock(mutex);
  if (spare.size() < 16) spare.push_back(std::move(s));
}

reader::core::leads_to reader::core::resolve(std::size_t n) const {
  // Checked when they were opened: the references lead down the chain and then back once.
  const core *image = this;
  while (image->table[n].kind == chunk_kind::parent) {
    n = image->table[n].where;
    image = image->parent.get();
  }
  if (image->table[n].kind == chunk_kind::same) n = image->table[n].where;
  return {image, n};
}

done reader::core::load(std::size_t n, std::span<std::byte> to, chunk_scratch &scratch,
                        bool thorough) const {
  auto ok = load_checked(n, to, scratch, thorough);
  if (!ok) {
    std::memset(to.data(), 0, to.size());
    if (ok.error().file.empty()) ok.error().file = path;
  }
  return ok;
}

done reader::core::load_checked(std::size_t n, std::span<std::byte> to, chunk_scratch &scratch,
                                bool thorough) const {
  const chunk_record &r = table[n];
  if (r.kind == chunk_kind::zero) {
    std::memset(to.data(), 0, to.size());
    return {};
  }
  const auto wrong = [&](const char *reason, std::string found, std::string expected) {
    return fail(errc::corrupt, op, reason, part::extents, r.where, std::move(found),
                std::move(expected));
  };
  // Straight to where it goes, when it is stored as it is.
  const bool straight = r.kind == chunk_kind::raw && !opened_with && is_aligned(to.data());
  std::span<std::byte> room = to;
  if (!straight) {
    const auto taken = at_least(scratch.stored, to_block(r.stored));
    if (!taken) return pass_on(taken.error());
    room = *taken;
  }
  if (const auto ok = file.read(room, r.where); !ok) return ok;
  const std::span<std::byte> stored = room.first(r.stored);
  if (!all_zero(room.subspan(r.stored))) {
    return wrong("something where zeros should be", {}, {});
  }
  if (!seals.empty()) {
    const sha256 &seal = seals[seal_of[n]];
    if (const sha256 there = sha256_of(stored); there != seal) {
      return wrong("an extent with another seal", there.text(), seal.text());
    }
  }
  const bool as_it_is = r.kind == chunk_kind::raw && !opened_with;
  digest contents;
  if (as_it_is && thorough) {
    const both_digests there = digests_of(stored);
    contents = there.contents;
    if (there.stored != r.stored_bytes) {
      return wrong("stored bytes with another digest", there.stored.text(), r.stored_bytes.text());
    }
  } else if (as_it_is) {
    contents = digest_of_contents(stored);  // says as much
  } else if (const digest there = digest_of(stored); there != r.stored_bytes) {
    return wrong("stored bytes with another digest", there.text(), r.stored_bytes.text());
  }
  if (!as_it_is) {
    std::span<std::byte> plain = stored.first(stored.size() - head.tag());
    if (opened_with) {
      if (auto ok = opened_with->decrypt({n, 0}, stored, plain); !ok) {
        return wrong(ok.error().why.reason, {}, {});
      }
    }
    if (r.kind != chunk_kind::raw) {
      if (auto ok = scratch.packer.decompress(r.kind, plain, to); !ok) {
        ok.error().offset = r.where;
        return ok;
      }
    } else {
      std::memcpy(to.data(), plain.data(), to.size());
    }
    contents = digest_of_contents(to);
  } else if (!straight) {
    std::memcpy(to.data(), stored.data(), to.size());
  }
  if (contents != r.contents) {
    return wrong("contents with another digest", contents.text(), r.contents.text());
  }
  return {};
}

done reader::read_chunk(std::size_t number, std::span<std::byte> to) const {
  if (number >= core_->table.size() || to.size() != core_->table[number].bytes) {
    return in_file<void>(fail(errc::invalid_argument, op, "no such chunk, or another size"),
                         core_->path);
  }
  try {
    const core::leads_to f = core_->resolve(number);
    auto scratch = f.image->take_scratch();
    auto ok = f.image->load(f.record, to, *scratch, false);
    f.image->give_scratch(std::move(scratch));
    return ok;
  } catch (const std::bad_alloc &) {
    return in_file<void>(fail(errc::out_of_memory, op, "no memory to read"), core_->path);
  }
}

done reader::read(std::uint64_t offset, std::span<std::byte> to) const {
  const std::uint64_t size = core_->head.contents_bytes;
  if (offset > size || to.size() > size - offset) {
    return in_file<void>(
        fail(errc::invalid_argument, op, "past the end of the contents", part::file, 0,
             std::to_string(offset) + " and " + std::to_string(to.size()) + " bytes",
             "at most " + std::to_string(size)),
        core_->path);
  }
  const std::span<std::byte> all = to;
  const auto &table = core_->table;
  auto at = std::upper_bound(table.begin(), table.end(), offset,
                             [](std::uint64_t o, const chunk_record &r) { return o < r.at; });
  aligned_memory piece;
  while (!to.empty()) {
    const auto number = static_cast<std::size_t>(at - table.begin()) - 1;
    const chunk_record &r = table[number];
    const std::uint64_t inside = offset - r.at;
    const std::size_t n = std::min<std::uint64_t>(to.size(), r.bytes - inside);
    done ok;
    if (n == r.bytes) {
      ok = read_chunk(number, to.first(n));
    } else if (const auto room = at_least(piece, r.bytes); !room) {
      ok = pass_on(room.error());
    } else if (ok = read_chunk(number, *room); ok) {
      std::memcpy(to.data(), room->data() + inside, n);
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
