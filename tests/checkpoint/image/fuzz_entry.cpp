#include "tests/checkpoint/image/fuzz_entry.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "stillmap/checkpoint/image/internal/file_calls.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

// A file in memory: an input costs no disk access.
class file_in_memory final : public file_calls {
 public:
  explicit file_in_memory(const std::vector<std::byte> &bytes) : bytes_(bytes) {}
  int open_at(int, const char *, int, unsigned) override { return 1'000'000; }
  int close(int) override { return 0; }
  int status(int, struct stat *s) override {
    *s = {};
    s->st_mode = S_IFREG;
    s->st_size = static_cast<off_t>(bytes_.size());
    return 0;
  }
  long read_at(int, void *to, std::size_t bytes, std::uint64_t offset) override {
    if (offset >= bytes_.size()) return 0;
    const std::size_t n = std::min(bytes, bytes_.size() - offset);
    std::memcpy(to, bytes_.data() + offset, n);
    return static_cast<long>(n);
  }

 private:
  const std::vector<std::byte> &bytes_;
};

bool within(const file_range &r, const std::vector<std::byte> &file) {
  return r.offset <= file.size() && r.bytes <= file.size() - r.offset;
}

file_range range_at(const std::vector<std::byte> &file, std::size_t at) {
  return {load<std::uint64_t>(file, at), load<std::uint64_t>(file, at + 8)};
}

void reseal_extents(std::vector<std::byte> &file, const file_range &table) {
  for (std::uint64_t at = table.offset; at + record_bytes <= table.end(); at += record_bytes) {
    const auto record = std::span(file).subspan(at, record_bytes);
    const file_range extent{load<std::uint64_t>(record, 16), load<std::uint32_t>(record, 12)};
    if (extent.bytes != 0 && within(extent, file)) {
      store(record, 48, digest_of(bytes_view(file).subspan(extent.offset, extent.bytes)).bytes);
    }
  }
}

// Recomputes the digests, as a forger would.
void reseal(std::vector<std::byte> &file, bool extents) {
  if (file.size() < block_bytes) return;
  const file_range table = range_at(file, 152), what = range_at(file, 168);
  if (extents && within(table, file)) reseal_extents(file, table);
  for (const auto &[r, at] : {std::pair{table, 216}, std::pair{what, 248}}) {
    if (!within(r, file)) continue;
    store(std::span(file), static_cast<std::size_t>(at),
          sha256_of(bytes_view(file).subspan(r.offset, r.bytes)).bytes);
  }
  store(std::span(file), 4048, sha256_of(bytes_view(file).first(4048)).bytes);
  store(std::span(file), 4080, digest_of(bytes_view(file).first(4080)).bytes);
}

std::string fuzz_manifest(const std::vector<std::byte> &bytes) {
  const auto m = decode_manifest(bytes.data(), bytes.size());
  if (!m) return m.error().reason[0] != '\0' ? "" : "refused without a reason";
  if (!check(*m)) return "a manifest was taken that contradicts itself";
  const auto again = encode(*m);
  if (!again) return "";  // larger than what it was read from
  const auto back = decode_manifest(again->data(), again->size());
  return back && *back == *m ? "" : "a manifest does not survive being written";
}

std::string fuzz_file(const std::vector<std::byte> &bytes) {
  file_in_memory calls(bytes);
  open_options options;
  options.calls = &calls;
  options.search_directory = false;
  options.direct_io = false;
  options.max_contents_bytes = 8 << 20;
  options.max_metadata_bytes = 8 << 20;
  const auto r = reader::open("input.smi", options);
  if (!r) {
    return r.error().message().find("input.smi: ") == 0 ? "" : "no reason: " + r.error().message();
  }
  verify_options verify;
  verify.threads = 1;
  const bool sound = r->verify(verify).has_value();
  std::vector<std::byte> to(r->superblock().contents_bytes);
  const bool whole = r->read(0, to).has_value();
  if (sound && !whole) return "verified, and cannot be read";
  if (!whole && !all_zero(to)) return "something was shown that is not sound";
  for (const chunk_record &c : r->chunks()) {
    const bytes_view shown = bytes_view(to).subspan(c.at, c.bytes);
    if (whole && c.kind == chunk_kind::zero && !all_zero(shown)) return "zeros are not zeros";
    // Contents that are stored as they are need the stored bytes' digest only.
    const bool good = c.kind == chunk_kind::raw
                          ? digest_of(shown) == c.stored_bytes
                          : digest_of_contents(r->digest_key(), shown) == c.contents;
    if (whole && (sound || c.kind != chunk_kind::same) && c.kind != chunk_kind::zero && !good) {
      return "contents were shown that have another digest";
    }
  }
  return "";
}

}  // namespace

std::string fuzz_image(const std::uint8_t *data, std::size_t size) {
  if (size == 0) return "";
  const auto mode = static_cast<fuzz_mode>(data[0] % static_cast<unsigned>(fuzz_mode::count));
  const auto *begin = reinterpret_cast<const std::byte *>(data + 1);
  std::vector<std::byte> bytes(begin, begin + size - 1);
  if (mode == fuzz_mode::manifest) return fuzz_manifest(bytes);
  if (mode != fuzz_mode::as_it_is) reseal(bytes, mode == fuzz_mode::all_digests);
  return fuzz_file(bytes);
}

std::vector<stillmap::testing::fuzz_input> fuzz_corpus() {
  std::vector<stillmap::testing::fuzz_input> inputs;
  std::string folder = std::filesystem::temp_directory_path() / "stillmap-corpus-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return inputs;
  const auto add = [&](fuzz_mode mode, const std::vector<std::byte> &bytes) {
    inputs.push_back(stillmap::testing::fuzz_input_of(static_cast<std::uint8_t>(mode), bytes));
  };
  for (unsigned i = 0; i < 12; ++i) {
    const sample s = make_sample({i, i % 5, 1 + i % 3});
    write_options options;
    options.compress = static_cast<codec>(i % 3);
    options.threads = 1;
    options.replace = true;
    options.chunk_bytes = min_chunk_bytes;
    if (i % 6 == 5) options.sign_with.emplace();
    contents_in_memory from(s.contents);
    if (!write(folder + "/a.smi", s.what, from, options)) continue;
    const auto file = bytes_of_file(folder + "/a.smi");
    add(fuzz_mode::as_it_is, file);
    if (i % 6 == 5) continue;
    add(fuzz_mode::resealed, file);
    add(fuzz_mode::all_digests, file);
    if (const auto what = encode(s.what)) add(fuzz_mode::manifest, *what);
  }
  std::filesystem::remove_all(folder);
  return inputs;
}

}  // namespace stillmap::image

STILLMAP_FUZZ_ENTRY("image", stillmap::image::fuzz_image, stillmap::image::fuzz_corpus)
