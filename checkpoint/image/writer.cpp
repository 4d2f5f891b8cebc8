#include "stillmap/checkpoint/image/writer.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/internal/children.h"
#include "stillmap/checkpoint/image/internal/extents.h"
#include "stillmap/checkpoint/image/internal/image_opener.h"
#include "stillmap/checkpoint/image/internal/random.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

tl::unexpected<error> refused(const char *reason) {
  return make_error(errc::invalid_argument, reason);
}

// The parts after the extents, collected in memory and written with one call.
class trailer {
 public:
  explicit trailer(std::uint64_t begins) : begins_(begins) {}

  result<file_range> add(bytes_view bytes, const cipher *encrypt_with, nonce n, sha256 &sum) {
    const file_range r{begins_ + bytes_.size(),
                       bytes.size() + (encrypt_with != nullptr ? tag_bytes : 0)};
    const std::size_t at = bytes_.size();
    bytes_.resize(at + to_block(r.bytes));
    const auto to = std::span(bytes_).subspan(at, r.bytes);
    if (encrypt_with != nullptr) {
      STILLMAP_RETURN_IF_ERROR(encrypt_with->encrypt(n, bytes, to));
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
  status write(checkpoint::block_file &file) const {
    STILLMAP_ASSIGN_OR_RETURN(const auto room, checkpoint::aligned_memory::create(bytes_.size()));
    std::memcpy(room.bytes().data(), bytes_.data(), bytes_.size());
    return file.write(room.bytes(), begins_);
  }

 private:
  std::uint64_t begins_;
  std::vector<std::byte> bytes_;
};

class image_writer {
 public:
  // `ancestor` and its own ancestors are not replaced.
  image_writer(const std::string &path, const manifest &what, contents_source &from,
               const write_options &options, std::shared_ptr<const open_image> ancestor)
      : path_(path), what_(what), from_(from), options_(options), ancestor_(std::move(ancestor)) {}

  result<written> run() {
    STILLMAP_RETURN_IF_ERROR(begin());
    checkpoint::file_system &files = *options_.files;
    STILLMAP_ASSIGN_OR_RETURN(const auto target, checkpoint::target_name::create(files, path_));
    STILLMAP_RETURN_IF_ERROR(check_target(target));
    STILLMAP_ASSIGN_OR_RETURN(auto temp,
                              checkpoint::atomic_file::create(target, options_.direct_io));
    STILLMAP_RETURN_IF_ERROR(fill(temp.file()));
    if (options_.verify) STILLMAP_RETURN_IF_ERROR(read_again(target, temp));
    // Others may have written meanwhile.
    STILLMAP_RETURN_IF_ERROR(check_target(target));
    STILLMAP_RETURN_IF_ERROR(check_parents());
    STILLMAP_RETURN_IF_ERROR(temp.publish(options_.replace));
    return sums_;
  }

 private:
  status begin() {
    STILLMAP_ASSIGN_OR_RETURN(key_,
                              options_.parent ? options_.parent->digest_key() : make_digest_key());
    if (auto ok = check(what_); !ok) {
      if (ok.error().is(errc::corrupt)) ok.error().code = make_error_code(errc::invalid_argument);
      return ok;
    }
    if (options_.queue_depth > 1024 || options_.threads > 1024)
      return refused("more than 1024 threads, or writes in flight");
    if (options_.set_images == 0 || options_.set_images > max_images_in_set ||
        options_.set_index >= options_.set_images) {
      return refused("the index is not in the set, or the set is empty or too large");
    }
    if (options_.set.is_zero() && options_.set_images != 1)
      return refused("a set of several images needs an id");
    if (options_.parent) {
      if (options_.parent->chain() >= max_chain_length) {
        return refused("the chain of parents is at its maximum length; flatten the parent first");
      }
      if (options_.parent->superblock().encrypted() != options_.key.has_value()) {
        return refused("an image and its parent are encrypted with the same key, or neither is");
      }
      if (options_.chunk_bytes != 0 &&
          options_.chunk_bytes != options_.parent->superblock().chunk_bytes) {
        return refused("chunk_bytes differs from the parent's");
      }
      super_.chunk_bytes = options_.parent->superblock().chunk_bytes;
      super_.parent = options_.parent->superblock().image;
      super_.parent_root = options_.parent->superblock().root;
      super_.flags |= flag_incremental;
    } else if (options_.chunk_bytes != 0) {
      super_.chunk_bytes = options_.chunk_bytes;
    }
    if (!std::has_single_bit(super_.chunk_bytes) || super_.chunk_bytes < min_chunk_bytes ||
        super_.chunk_bytes > max_chunk_bytes) {
      return refused("chunk_bytes must be a power of two from 64 KiB to 64 MiB");
    }
    if (options_.key) super_.flags |= flag_encrypted;
    if (options_.sign_with) super_.flags |= flag_signed;
    STILLMAP_RETURN_IF_ERROR(fill_random(super_.image.bytes));
    super_.set = options_.set;
    if (super_.set.is_zero()) STILLMAP_RETURN_IF_ERROR(fill_random(super_.set.bytes));
    super_.set_images = options_.set_images;
    super_.set_index = options_.set_index;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    super_.time = options_.time.value_or(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
    if (options_.key) {
      STILLMAP_ASSIGN_OR_RETURN(encrypt_with_, cipher::create(*options_.key, super_.image));
    }
    table_ = lay_out(what_.page_bytes(), super_.chunk_bytes);
    for (const chunk_record &r : table_) super_.contents_bytes += r.bytes;
    super_.chunks = table_.size();
    return {};
  }

  // Whether the name can be taken.
  status check_target(const checkpoint::target_name &target) const {
    struct stat there {};
    const int r = target.files().status_at(target.directory(), target.name().c_str(), &there);
    if (r < 0) return {};
    if (!options_.replace) return make_system_error(EEXIST, "a file of this name exists already");
    for (auto p = ancestor_; p; p = p->parent) {
      struct stat st {};
      if (target.files().status(p->file.fd(), &st) >= 0 && st.st_ino == there.st_ino &&
          st.st_dev == there.st_dev) {
        return refused(
            "an image cannot replace its own ancestor, nor that of an image that is flattened: "
            "write it to another file");
      }
    }
    return options_.force ? status() : check_no_children(target);
  }

  // An image that is published without its parents could never be read.
  status check_parents() const {
    if (!options_.parent) return {};
    for (auto p = image_opener::image_of(*options_.parent); p; p = p->parent) {
      struct stat st {};
      if (const int r = p->file.files().status(p->file.fd(), &st); r < 0)
        return make_system_error(-r, "cannot read the status of the parent", p->path);
      if (st.st_nlink != 0) continue;
      return make_system_error(
          ENOENT,
          "the parent was deleted or replaced since it was opened: write an image without it",
          p->path);
    }
    return {};
  }

  status fill(checkpoint::block_file &file) {
    const cipher *const encrypt_with = encrypt_with_ ? &*encrypt_with_ : nullptr;
    // Preallocation keeps the extents together and saves growing the file write by write. Failing
    // is no error: the stored bytes may be far fewer, and writes report a lack of space.
    if (options_.compress == codec::none && !options_.parent && super_.contents_bytes != 0 &&
        file.files().preallocate(file.fd(), block_bytes + super_.contents_bytes) < 0) {
      STILLMAP_RETURN_IF_ERROR(file.truncate(0));
    }
    extent_writer extents(file, table_, from_, options_, what_, key_, encrypt_with);
    STILLMAP_RETURN_IF_ERROR(extents.run());
    trailer rest(extents.end());
    STILLMAP_RETURN_IF_ERROR(add_parts(rest, extents, encrypt_with));
    STILLMAP_RETURN_IF_ERROR(file.truncate(super_.file_bytes));
    STILLMAP_RETURN_IF_ERROR(rest.write(file));
    STILLMAP_ASSIGN_OR_RETURN(const auto block, checkpoint::aligned_memory::create(block_bytes));
    std::memcpy(block.bytes().data(), first_.data(), first_.size());
    STILLMAP_RETURN_IF_ERROR(file.write(block.bytes(), 0));
    // Nobody opens the file before it has its name, so one sync does for all that was written.
    STILLMAP_RETURN_IF_ERROR(file.sync_data());
    add_up(file);
    return {};
  }

  // Chunk table, manifest, seals, signature, and the superblock that describes them.
  status add_parts(trailer &rest, const extent_writer &extents, const cipher *encrypt_with) {
    STILLMAP_ASSIGN_OR_RETURN(super_.chunk_table, rest.add(encode(table_, key_), encrypt_with,
                                                           nonce_of_table, super_.chunk_table_sum));
    STILLMAP_ASSIGN_OR_RETURN(const auto what, encode(what_));
    STILLMAP_ASSIGN_OR_RETURN(super_.manifest,
                              rest.add(what, encrypt_with, nonce_of_manifest, super_.manifest_sum));
    if (options_.sign_with) {
      std::vector<std::byte> seals;
      for (std::size_t i = 0; i < table_.size(); ++i) {
        if (!table_[i].is_stored()) continue;
        const auto &seal = extents.seals()[i].bytes;
        seals.insert(seals.end(), seal.begin(), seal.end());
      }
      STILLMAP_ASSIGN_OR_RETURN(super_.seals,
                                rest.add(seals, encrypt_with, nonce_of_seals, super_.seals_sum));
      super_.signature = rest.reserve(signature_bytes);
    }
    super_.file_bytes = rest.end();
    if (encrypt_with != nullptr) {
      const superblock_bytes plain = encode(super_);
      STILLMAP_ASSIGN_OR_RETURN(
          super_.authentication,
          encrypt_with->authenticate(nonce_of_superblock,
                                     bytes_view(plain).first(authenticated_bytes)));
    }
    first_ = encode(super_);
    if (options_.sign_with) {
      STILLMAP_ASSIGN_OR_RETURN(const auto half, verifying_key_of(*options_.sign_with));
      STILLMAP_ASSIGN_OR_RETURN(const auto s, sign(*options_.sign_with, super_.root));
      store(rest.at(super_.signature), 0, half.bytes);
      store(rest.at(super_.signature), half.bytes.size(), s.bytes);
    }
    return {};
  }

  void add_up(const checkpoint::block_file &file) {
    sums_.image = super_.image;
    sums_.root = super_.root;
    sums_.file_bytes = super_.file_bytes;
    sums_.contents_bytes = super_.contents_bytes;
    sums_.chunks = table_.size();
    sums_.direct_io = file.direct();
    for (const chunk_record &r : table_) {
      sums_.stored_bytes += r.stored;
      sums_.zero_chunks += r.kind == chunk_kind::zero;
      sums_.same_chunks += r.kind == chunk_kind::same;
      sums_.parent_chunks += r.kind == chunk_kind::parent;
      sums_.compressed_chunks += r.kind == chunk_kind::lz4 || r.kind == chunk_kind::zstd;
    }
  }

  status read_again(const checkpoint::target_name &target, checkpoint::atomic_file &temp) const {
    temp.file().drop_cached();
    open_options options;
    options.key = options_.key;
    options.direct_io = options_.direct_io;
    options.files = options_.files;
    options.max_metadata_bytes = UINT64_MAX;
    STILLMAP_ASSIGN_OR_RETURN(
        const auto again,
        image_opener(options).open(
            target.directory(), temp.name(), path_,
            options_.parent ? image_opener::image_of(*options_.parent) : nullptr));
    verify_options verify;
    verify.threads = options_.threads;
    verify.parents = false;
    verify.cancel = options_.cancel;
    if (options_.on_progress) {
      verify.on_progress = [&](const verify_progress &p) {
        return options_.on_progress(
            {write_phase::verifying, p.bytes, p.total_bytes, p.total_bytes});
      };
    }
    if (again.superblock().root != super_.root) {
      return make_error(errc::corrupt, "the image read back has another root digest");
    }
    return again.verify(verify);
  }

  const std::string &path_;
  const manifest &what_;
  contents_source &from_;
  const write_options &options_;
  const std::shared_ptr<const open_image> ancestor_;
  superblock super_;
  superblock_bytes first_;
  std::vector<chunk_record> table_;
  digest_key key_;
  std::optional<cipher> encrypt_with_;
  written sums_;
};

// The contents of an open image.
class contents_of_image final : public contents_source {
 public:
  explicit contents_of_image(const reader &r) : reader_(r) {}
  result<bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) override {
    STILLMAP_RETURN_IF_ERROR(reader_.read(offset, room));
    return bytes_view(room);
  }

 private:
  const reader &reader_;
};

result<written> write_beside(const std::string &path, const manifest &what, contents_source &from,
                             const write_options &options, const std::optional<reader> &ancestor) {
  const auto write = [&] {
    return image_writer(path, what, from, options,
                        ancestor ? image_opener::image_of(*ancestor) : nullptr)
        .run();
  };
  return checkpoint::in_file(with_host_memory(write), path);
}

}  // namespace

result<written> write(const std::string &path, const manifest &what, contents_source &from,
                      const write_options &options) {
  const operation_scope scope("image::write");
  return write_beside(path, what, from, options, options.parent);
}

result<written> flatten(const reader &image, const std::string &path, write_options options) {
  const operation_scope scope("image::flatten");
  options.parent.reset();
  if (options.chunk_bytes == 0) options.chunk_bytes = image.superblock().chunk_bytes;
  if (!options.time) options.time = image.superblock().time;
  contents_of_image from(image);
  return write_beside(path, image.manifest(), from, options, image.parent());
}

}  // namespace stillmap::image
