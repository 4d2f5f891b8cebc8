#include "tools/stillmap/image/image_diff.h"

#include <algorithm>
#include <cstring>

#include "stillmap/vmm/base/try.h"

namespace stillmap::tool {

std::vector<image_place> places_of(const image::manifest &m) {
  std::vector<std::uint64_t> at;
  std::uint64_t end = 0;
  for (const image::manifest::page &p : m.pages) {
    at.push_back(end);
    end += p.bytes;
  }
  std::vector<image_place> out;
  auto block = m.blocks.begin();
  for (const image::manifest::place &p : m.places) {
    while (p.address >= block->begin + block->bytes) ++block;
    out.push_back({p.address, p.address + m.pages[p.page].bytes, at[p.page], block->tag});
  }
  return out;
}

namespace {

class image_comparison {
 public:
  image_comparison(const image::reader &first, const image::reader &second)
      : first_(first), second_(second) {}

  result<image_difference> run() {
    const std::vector<image_place> a = places_of(first_.manifest()),
                                   b = places_of(second_.manifest());
    std::size_t i = 0, j = 0;
    std::uint64_t from = 0;  // all addresses below it are done
    while (i < a.size() || j < b.size()) {
      const std::uint64_t in_a = i < a.size() ? std::max(from, a[i].begin) : UINT64_MAX;
      const std::uint64_t in_b = j < b.size() ? std::max(from, b[j].begin) : UINT64_MAX;
      const std::uint64_t begin = std::min(in_a, in_b);
      std::uint64_t end = UINT64_MAX;
      for (const auto &[at, place] : {std::pair(in_a, i < a.size() ? &a[i] : nullptr),
                                      std::pair(in_b, j < b.size() ? &b[j] : nullptr)}) {
        if (place != nullptr) end = std::min(end, at == begin ? place->end : at);
      }
      if (in_a == in_b) {
        const std::uint64_t at_a = a[i].at + (begin - a[i].begin);
        const std::uint64_t at_b = b[j].at + (begin - b[j].begin);
        STILLMAP_RETURN_IF_ERROR(contents(begin, end - begin, at_a, at_b, a[i].tag));
      } else if (in_a < in_b) {
        out_.only_in_first += end - begin;
        add(begin, end - begin, difference::only_in_first, first_.manifest().tags[a[i].tag]);
      } else {
        out_.only_in_second += end - begin;
        add(begin, end - begin, difference::only_in_second, second_.manifest().tags[b[j].tag]);
      }
      from = end;
      if (i < a.size() && a[i].end <= from) ++i;
      if (j < b.size() && b[j].end <= from) ++j;
    }
    return std::move(out_);
  }

 private:
  status contents(std::uint64_t address, std::uint64_t bytes, std::uint64_t at_a,
                  std::uint64_t at_b, std::uint32_t tag) {
    while (bytes != 0) {
      const image::chunk_record &a = chunk_at(first_, at_a), &b = chunk_at(second_, at_b);
      const std::uint64_t step = std::min({bytes, a.at + a.bytes - at_a, b.at + b.bytes - at_b});
      if (step == a.bytes && step == b.bytes && are_comparable(a, b)) {
        note(address, step, a.contents == b.contents, tag);
      } else {
        STILLMAP_ASSIGN_OR_RETURN(const auto x, first_chunk_.load(first_, a));
        STILLMAP_ASSIGN_OR_RETURN(const auto y, second_chunk_.load(second_, b));
        out_.bytes_read += step;
        for (std::uint64_t at = 0; at < step; at += image::block_bytes) {
          const bool same =
              std::memcmp(&x[at_a - a.at + at], &y[at_b - b.at + at], image::block_bytes) == 0;
          note(address + at, image::block_bytes, same, tag);
        }
      }
      address += step;
      at_a += step;
      at_b += step;
      bytes -= step;
    }
    return {};
  }

  // Digests under different keys say nothing about each other; zeros have none.
  bool are_comparable(const image::chunk_record &a, const image::chunk_record &b) const {
    return first_.digest_key() == second_.digest_key() || a.contents.is_zero() ||
           b.contents.is_zero();
  }

  void note(std::uint64_t address, std::uint64_t bytes, bool same, std::uint32_t tag) {
    (same ? out_.same : out_.changed) += bytes;
    if (!same) add(address, bytes, difference::contents, first_.manifest().tags[tag]);
  }

  // The chunk that was read last: several ranges of addresses may need one.
  class last_chunk {
   public:
    result<image::bytes_view> load(const image::reader &from, const image::chunk_record &c) {
      if (of_ != &c) {
        of_ = nullptr;
        bytes_.resize(c.bytes);
        STILLMAP_RETURN_IF_ERROR(from.read(c.at, bytes_));
        of_ = &c;
      }
      return image::bytes_view(bytes_);
    }

   private:
    const image::chunk_record *of_ = nullptr;
    std::vector<std::byte> bytes_;
  };

  static const image::chunk_record &chunk_at(const image::reader &r, std::uint64_t at) {
    return *std::prev(
        std::upper_bound(r.chunks().begin(), r.chunks().end(), at,
                         [](std::uint64_t x, const image::chunk_record &c) { return x < c.at; }));
  }

  void add(std::uint64_t begin, std::uint64_t bytes, difference what, const std::string &tag) {
    if (!out_.ranges.empty()) {
      differing_range &last = out_.ranges.back();
      if (last.what == what && last.tag == tag && last.range.end().value() == begin) {
        last.range.bytes += static_cast<std::size_t>(bytes);
        return;
      }
    }
    out_.ranges.push_back({{device_address(begin), static_cast<std::size_t>(bytes)}, what, tag});
  }

  const image::reader &first_, &second_;
  last_chunk first_chunk_, second_chunk_;
  image_difference out_;
};

}  // namespace

result<image_difference> compare(const image::reader &first, const image::reader &second) {
  return image_comparison(first, second).run();
}

}  // namespace stillmap::tool
