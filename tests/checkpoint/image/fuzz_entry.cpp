#include "tests/checkpoint/image/fuzz_entry.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/internal/seal.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

using file_bytes = std::vector<std::byte>;

// Files in memory: an input costs no disk access.
class files_in_memory final : public checkpoint::file_system {
 public:
  void add(const char *name, const file_bytes &bytes) { files_.push_back({name, bytes}); }
  int open_at(int, const char *name, int flags, unsigned) override {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (files_[i].name != name) continue;
      return (flags & O_DIRECTORY) != 0 ? -ENOTDIR : first_fd + static_cast<int>(i);
    }
    return (flags & O_PATH) != 0 || (flags & O_DIRECTORY) != 0 ? first_fd - 1 : -ENOENT;
  }
  int close(int) override { return 0; }
  int status(int fd, struct stat *s) override {
    *s = {};
    s->st_mode = S_IFREG;
    s->st_size = static_cast<off_t>(of(fd).size());
    return 0;
  }
  long read_at(int fd, void *to, std::size_t bytes, std::uint64_t offset) override {
    const file_bytes &from = of(fd);
    if (offset >= from.size()) return 0;
    const std::size_t n = std::min(bytes, from.size() - offset);
    std::memcpy(to, from.data() + offset, n);
    return static_cast<long>(n);
  }

 private:
  static constexpr int first_fd = 1'000'000;
  struct file {
    std::string name;
    const file_bytes &bytes;
  };
  const file_bytes &of(int fd) const {
    return files_[static_cast<std::size_t>(fd - first_fd)].bytes;
  }
  std::vector<file> files_;
};

const secret_key fuzz_key = [] {
  secret_key k;
  k.bytes.fill(std::byte{7});
  return k;
}();

// A new folder for images, and what is left of it in the end.
class image_folder {
 public:
  image_folder() {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~image_folder() { std::filesystem::remove_all(path_); }
  std::string file(const char *name) const { return path_ + "/" + name; }
  file_bytes write(const char *name, const sample &s, write_options options) const {
    options.threads = 1;
    options.replace = true;
    options.chunk_bytes = min_chunk_bytes;
    contents_in_memory from(s.contents);
    if (!image::write(file(name), s.what, from, options)) std::abort();
    return bytes_of_file(file(name));
  }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "stillmap-corpus-XXXXXX";
};

sample sample_of_chain(unsigned step) {
  return step == 0 ? make_sample({3, 3, 2}) : changed(sample_of_chain(step - 1), step);
}

// The parent of inputs that are children, and its own parent.
struct ancestors {
  file_bytes parent, grandparent;
  superblock head;
  decoded_chunk_table table;
};
ancestors make_ancestors() {
  const image_folder folder;
  ancestors a;
  a.grandparent = folder.write("0.smi", sample_of_chain(0), {});
  write_options options;
  options.parent = reader::open(folder.file("0.smi")).value();
  a.parent = folder.write("1.smi", sample_of_chain(1), options);
  a.head = decode_superblock(bytes_view(a.parent).first(block_bytes)).value();
  a.table =
      decode_chunk_table(
          bytes_view(a.parent).subspan(a.head.chunk_table.offset, a.head.chunk_table.bytes), a.head)
          .value();
  return a;
}
const ancestors &the_ancestors() {
  static const ancestors all = make_ancestors();
  return all;
}

bool within(const file_range &r, const file_bytes &file) {
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

// The ids, keys and digests of this process's ancestors, which an input of another one cannot know.
void adopt(file_bytes &file) {
  if (file.size() < block_bytes) return;
  const ancestors &of = the_ancestors();
  store(std::span(file), 64, of.head.image.bytes);
  store(std::span(file), 80, of.head.root.bytes);
  const file_range table = range_at(file, 152);
  if (!within(table, file) || table.bytes < key_bytes) return;
  store(std::span(file), table.end() - key_bytes, of.table.key.bytes);
  for (std::uint64_t at = table.offset; at + record_bytes <= table.end(); at += record_bytes) {
    const auto record = std::span(file).subspan(at, record_bytes);
    const auto where = load<std::uint64_t>(record, 16);
    if (record[24] != std::byte{5} || where >= of.table.records.size()) continue;
    store(record, 32, of.table.records[where].contents.bytes);
  }
}

// Recomputes the digests, as a forger would.
void reseal(file_bytes &file, bool extents, bool authenticate) {
  if (file.size() < block_bytes) return;
  const file_range table = range_at(file, 152), what = range_at(file, 168);
  if (extents && within(table, file)) reseal_extents(file, table);
  for (const auto &[r, at] : {std::pair{table, 216}, std::pair{what, 248}}) {
    if (!within(r, file)) continue;
    store(std::span(file), static_cast<std::size_t>(at),
          sha256_of(bytes_view(file).subspan(r.offset, r.bytes)).bytes);
  }
  if (authenticate) {
    const auto with = cipher::create(fuzz_key, {load<decltype(image_id::bytes)>(file, 32)});
    const auto tag =
        with->authenticate(nonce_of_superblock, bytes_view(file).first(authenticated_bytes));
    store(std::span(file), authenticated_bytes, tag->bytes);
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

std::string fuzz_file(const file_bytes &bytes, fuzz_mode mode) {
  files_in_memory calls;
  calls.add("input.smi", bytes);
  open_options options;
  if (mode == fuzz_mode::encrypted) options.key = fuzz_key;
  if (mode == fuzz_mode::child) {
    calls.add("0.smi", the_ancestors().grandparent);
    calls.add("1.smi", the_ancestors().parent);
    options.parents = {"0.smi", "1.smi"};
  }
  options.files = &calls;
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
    if (!whole) break;
    const bytes_view shown = bytes_view(to).subspan(c.at, c.bytes);
    bool good = true;
    if (c.kind == chunk_kind::zero) {
      good = all_zero(shown);
    } else if (c.kind == chunk_kind::raw && !r->superblock().encrypted()) {
      good = digest_of(shown) == c.stored_bytes;  // which is all that reading checks
    } else if (sound || c.kind != chunk_kind::same) {
      const digest found = digest_of_contents(r->digest_key(), shown).value();
      good = found == c.contents || (c.contents.is_zero() && all_zero(shown));
    }
    if (!good) {
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
  if (mode == fuzz_mode::child) adopt(bytes);
  if (mode != fuzz_mode::as_it_is) {
    reseal(bytes, mode == fuzz_mode::all_digests || mode == fuzz_mode::child,
           mode == fuzz_mode::encrypted);
  }
  return fuzz_file(bytes, mode);
}

std::vector<stillmap::testing::fuzz_input> fuzz_corpus() {
  std::vector<stillmap::testing::fuzz_input> inputs;
  const image_folder folder;
  const auto add = [&](fuzz_mode mode, const std::vector<std::byte> &bytes) {
    inputs.push_back(stillmap::testing::fuzz_input_of(static_cast<std::uint8_t>(mode), bytes));
  };
  for (unsigned i = 0; i < 12; ++i) {
    const sample s = make_sample({i, i % 5, 1 + i % 3});
    write_options options;
    options.compress = static_cast<codec>(i % 3);
    if (i % 6 == 5) options.sign_with.emplace();
    const auto file = folder.write("a.smi", s, options);
    add(fuzz_mode::as_it_is, file);
    if (i % 6 == 5) continue;
    add(fuzz_mode::resealed, file);
    add(fuzz_mode::all_digests, file);
    if (const auto what = encode(s.what)) add(fuzz_mode::manifest, *what);
  }
  for (unsigned i = 0; i < 3; ++i) {
    write_options options;
    options.compress = static_cast<codec>(i);
    options.key = fuzz_key;
    add(fuzz_mode::encrypted, folder.write("secret.smi", make_sample({i, i, 1}), options));
    options.key.reset();
    put_file(folder.file("0.smi"), the_ancestors().grandparent);
    put_file(folder.file("1.smi"), the_ancestors().parent);
    options.parent = reader::open(folder.file("1.smi")).value();
    add(fuzz_mode::child, folder.write("child.smi", sample_of_chain(2 + i), options));
  }
  return inputs;
}

}  // namespace stillmap::image

STILLMAP_FUZZ_ENTRY("image", stillmap::image::fuzz_image, stillmap::image::fuzz_corpus)
