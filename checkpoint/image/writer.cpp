#include "stillmap/checkpoint/image/writer.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>

#include "stillmap/checkpoint/image/internal/atomic_file.h"
#include "stillmap/checkpoint/image/internal/extents.h"
#include "stillmap/checkpoint/image/internal/reader_internal.h"
#include "stillmap/checkpoint/image/internal/wire.h"

namespace stillmap::image {
namespace {

constexpr const char *op = "image::write";

tl::unexpected<failure> pass_on(failure f) {
  return tl::unexpected<failure>(std::move(f));
}

tl::unexpected<failure> refused(const char *reason) {
  return fail(errc::invalid_argument, op, reason);
}

// What comes behind the extents, one part after the other, in memory that goes out at once.
class trailer {
 public:
  explicit trailer(std::uint64_t begins) : begins_(begins) {}

  outcome<file_range> add(bytes_view bytes, const cipher *sealed_with, nonce n, sha256 &sum) {
    const file_range r{begins_ + bytes_.size(),
                       bytes.size() + (sealed_with != nullptr ? tag_bytes : 0)};
    const std::size_t at = bytes_.size();
    bytes_.resize(at + to_block(r.bytes));
    const auto to = std::span(bytes_).subspan(at, r.bytes);
    if (sealed_with != nullptr) {
      if (const auto ok = sealed_with->encrypt(n, bytes, to); !ok) return pass_on(ok.error());
    } else {
      std::copy(bytes.begin(), bytes.end(), to.begin());
    }
    sum = sha256_of(to);
    return r;
  }
  file_range reserve(std::uint64_t bytes) {
    const file_range r{begins_ + bytes_.size(), bytes};
    bytes_.resize(bytes_.size() + to_block(bytes));
    return r;
  }
  std::span<std::byte> at(const file_range &r) {
    return std::span(bytes_).subspan(r.offset - begins_, r.bytes);
  }
  std::uint64_t end() const { return begins_ + bytes_.size(); }
  done write(image_file &file) const {
    const auto room = aligned_memory::create(bytes_.size());
    if (!room) return pass_on(room.error());
    std::memcpy(room->bytes().data(), bytes_.data(), bytes_.size());
    return file.write(room->bytes(), begins_);
  }

 private:
  std::uint64_t begins_;
  std::vector<std::byte> bytes_;
};

class image_writer {
 public:
  image_writer(const std::string &path, const manifest &what, contents_source &from,
               const write_options &how)
      : path_(path), what_(what), from_(from), how_(how) {}

  outcome<written> run() {
    if (const auto ok = begin(); !ok) return pass_on(ok.error());
    file_calls &calls = how_.calls != nullptr ? *how_.calls : file_calls::system();
    const auto target = target_name::create(calls, path_);
    if (!target) return pass_on(target.error());
    if (const auto ok = check_target(*target); !ok) return pass_on(ok.error());
    auto temp = temporary::create(*target, how_.past_page_cache);
    if (!temp) return pass_on(temp.error());
    if (const auto ok = fill(temp->file()); !ok) return pass_on(ok.error());
    if (how_.verify) {
      if (const auto ok = read_again(*target, *temp); !ok) return pass_on(ok.error());
    }
    if (const auto ok = temp->publish(how_.replace); !ok) return pass_on(ok.error());
    return sums_;
  }

 private:
  done begin() {
    if (auto ok = check(what_); !ok) {
      ok.error().why.code = make_error_code(errc::invalid_argument);
      return ok;
    }
    if (how_.writes_at_once > 1024 || how_.threads > 1024) return refused("too many at once");
    if (how_.set_images == 0 || how_.set_images > most_images_in_set ||
        how_.set_index >= how_.set_images) {
      return refused("no such place in a set");
    }
    if (how_.set.is_zero() && how_.set_images != 1) return refused("a set without a number");
    if (how_.parent) {
      if (how_.parent->chain() >= longest_chain) {
        return refused("the parent ends a chain that is as long as one may be: flatten it");
      }
      if (how_.chunk_bytes != 0 && how_.chunk_bytes != how_.parent->head().chunk_bytes) {
        return refused("chunks of another size than the parent's");
      }
      head_.chunk_bytes = how_.parent->head().chunk_bytes;
      head_.parent = how_.parent->head().image;
      head_.parent_root = how_.parent->head().root;
      head_.flags |= flag_incremental;
    } else if (how_.chunk_bytes != 0) {
      head_.chunk_bytes = how_.chunk_bytes;
    }
    if (!std::has_single_bit(head_.chunk_bytes) || head_.chunk_bytes < smallest_chunk ||
        head_.chunk_bytes > largest_chunk) {
      return refused("chunks are a power of two from 64 KiB to 64 MiB");
    }
    if (how_.key) head_.flags |= flag_encrypted;
    if (how_.sign_with) head_.flags |= flag_signed;
    if (const auto ok = fill_random(head_.image.bytes); !ok) return ok;
    head_.set = how_.set;
    if (head_.set.is_zero()) {
      if (const auto ok = fill_random(head_.set.bytes); !ok) return ok;
    }
    head_.set_images = how_.set_images;
    head_.set_index = how_.set_index;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    head_.time = how_.time.value_or(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
    if (how_.key) {
      const auto made = cipher::create(*how_.key, head_.image);
      if (!made) return pass_on(made.error());
      sealed_with_ = *made;
    }
    table_ = lay_out(what_.page_bytes(), head_.chunk_bytes);
    for (const chunk_record &r : table_) head_.contents_bytes += r.bytes;
    head_.chunks = table_.size();
    return {};
  }

  // What is there already, before any work is done for nothing. publish() has the last word.
  done check_target(const target_name &target) const {
    struct stat there {};
    const int r = target.calls().status_at(target.directory(), target.name().c_str(), &there);
    if (r < 0) return {};
    if (!how_.replace) return fail_system(EEXIST, op, "there is something of this name already");
    std::shared_ptr<const image_opener::core> p;
    if (how_.parent) p = image_opener::core_of(*how_.parent);
    for (; p; p = p->parent) {
      struct stat st {};
      if (target.calls().status(p->file.fd(), &st) >= 0 && st.st_ino == there.st_ino &&
          st.st_dev == there.st_dev) {
        return refused("an image cannot replace its own parent: flatten it");
      }
    }
    return {};
  }

  done fill(image_file &file) {
    const cipher *const sealed_with = sealed_with_ ? &*sealed_with_ : nullptr;
    // So that the extents lie together, and the file does not grow write by write. What is stored
    // may be far less, so that it matters only when a write is refused that there is no room.
    if (how_.compress == codec::none && !how_.parent && head_.contents_bytes != 0 &&
        file.calls().set_aside(file.fd(), block_bytes + head_.contents_bytes) < 0) {
      if (const auto ok = file.truncate(0); !ok) return ok;
    }
    extent_writer extents(file, table_, from_, how_, what_, sealed_with);
    if (const auto ok = extents.run(); !ok) return ok;
    trailer rest(extents.end());
    if (const auto ok = add_parts(rest, extents, sealed_with); !ok) return ok;
    if (const auto ok = file.truncate(head_.file_bytes); !ok) return ok;
    if (const auto ok = file.sync_data(); !ok) return ok;
    if (const auto ok = rest.write(file); !ok) return ok;
    if (const auto ok = file.sync_data(); !ok) return ok;
    const auto block = aligned_memory::create(block_bytes);
    if (!block) return pass_on(block.error());
    std::memcpy(block->bytes().data(), first_.data(), first_.size());
    if (const auto ok = file.write(block->bytes(), 0); !ok) return ok;
    if (const auto ok = file.sync_data(); !ok) return ok;
    add_up(file);
    return {};
  }

  // Table, manifest, seals and signature; and the superblock, which names them all.
  done add_parts(trailer &rest, const extent_writer &extents, const cipher *sealed_with) {
    const auto table = rest.add(encode(table_), sealed_with, nonce_of_table, head_.chunk_table_sum);
    if (!table) return pass_on(table.error());
    head_.chunk_table = *table;
    const auto what = encode(what_);
    if (!what) return pass_on(what.error());
    const auto manifest = rest.add(*what, sealed_with, nonce_of_manifest, head_.manifest_sum);
    if (!manifest) return pass_on(manifest.error());
    head_.manifest = *manifest;
    if (how_.sign_with) {
      std::vector<std::byte> seals;
      for (std::size_t i = 0; i < table_.size(); ++i) {
        if (!table_[i].is_stored()) continue;
        const auto &seal = extents.seals()[i].bytes;
        seals.insert(seals.end(), seal.begin(), seal.end());
      }
      const auto r = rest.add(seals, sealed_with, nonce_of_seals, head_.seals_sum);
      if (!r) return pass_on(r.error());
      head_.seals = *r;
      head_.signature = rest.reserve(signature_bytes);
    }
    head_.file_bytes = rest.end();
    first_ = encode(head_);
    if (how_.sign_with) {
      const auto half = verifying_key_of(*how_.sign_with);
      if (!half) return pass_on(half.error());
      const auto s = sign(*how_.sign_with, head_.root);
      if (!s) return pass_on(s.error());
      store(rest.at(head_.signature), 0, half->bytes);
      store(rest.at(head_.signature), half->bytes.size(), s->bytes);
    }
    return {};
  }

  void add_up(const image_file &file) {
    sums_.image = head_.image;
    sums_.root = head_.root;
    sums_.file_bytes = head_.file_bytes;
    sums_.contents_bytes = head_.contents_bytes;
    sums_.chunks = table_.size();
    sums_.past_page_cache = file.direct();
    for (const chunk_record &r : table_) {
      sums_.stored_bytes += r.stored;
      sums_.zero_chunks += r.kind == chunk_kind::zero;
      sums_.same_chunks += r.kind == chunk_kind::same;
      sums_.parent_chunks += r.kind == chunk_kind::parent;
      sums_.compressed_chunks += r.kind == chunk_kind::lz4 || r.kind == chunk_kind::zstd;
    }
  }

  done read_again(const target_name &target, temporary &temp) const {
    temp.file().drop_cached();
    open_options how;
    how.key = how_.key;
    how.past_page_cache = how_.past_page_cache;
    how.calls = how_.calls;
    how.most_metadata = UINT64_MAX;
    const auto again =
        image_opener(how).open(target.directory(), temp.name(), path_,
                               how_.parent ? image_opener::core_of(*how_.parent) : nullptr);
    if (!again) return pass_on(again.error());
    verify_options verify;
    verify.threads = how_.threads;
    verify.parents = false;
    if (how_.on_progress) {
      verify.on_progress = [&](const verify_progress &p) {
        return how_.on_progress({write_phase::verifying, p.bytes, p.of_bytes, p.of_bytes});
      };
    }
    if (again->head().root != head_.root) {
      return fail(errc::corrupt, op, "another image was read than was written");
    }
    return again->verify(verify);
  }

  const std::string &path_;
  const manifest &what_;
  contents_source &from_;
  const write_options &how_;
  superblock head_;
  superblock_bytes first_;
  std::vector<chunk_record> table_;
  std::optional<cipher> sealed_with_;
  written sums_;
};

// What an image holds, for another.
class contents_of_image final : public contents_source {
 public:
  explicit contents_of_image(const reader &r) : reader_(r) {}
  outcome<bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) override {
    if (const auto ok = reader_.read(offset, room); !ok) return pass_on(ok.error());
    return bytes_view(room);
  }

 private:
  const reader &reader_;
};

}  // namespace

contents_source::~contents_source() = default;
std::optional<digest> contents_source::digest_of(std::uint64_t /*offset*/, std::size_t /*bytes*/) {
  return std::nullopt;
}

outcome<bytes_view> contents_in_memory::chunk(std::uint64_t offset, std::span<std::byte> room) {
  if (offset > contents_.size() || room.size() > contents_.size() - offset) {
    return refused("the pages have more bytes than the contents given");
  }
  return contents_.subspan(offset, room.size());
}

outcome<written> write(const std::string &path, const manifest &what, contents_source &from,
                       const write_options &options) {
  try {
    return in_file(image_writer(path, what, from, options).run(), path);
  } catch (const std::bad_alloc &) {
    return in_file<written>(fail(errc::out_of_memory, op, "no memory to write"), path);
  }
}

outcome<written> flatten(const reader &image, const std::string &path, write_options how) {
  how.parent.reset();
  if (how.chunk_bytes == 0) how.chunk_bytes = image.head().chunk_bytes;
  if (!how.time) how.time = image.head().time;
  contents_of_image from(image);
  return write(path, image.what(), from, how);
}

}  // namespace stillmap::image
