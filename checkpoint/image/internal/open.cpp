// Opening an image: nothing of it is believed before it has been checked.
// docs/image_format.md#reading-what-may-be-hostile
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "stillmap/checkpoint/image/internal/atomic_file.h"
#include "stillmap/checkpoint/image/internal/reader_internal.h"
#include "stillmap/checkpoint/image/internal/wire.h"

namespace stillmap::image {
namespace {

constexpr const char *op = "image::open";

tl::unexpected<failure> pass_on(failure f) {
  return tl::unexpected<failure>(std::move(f));
}

}  // namespace

done image_opener::check_limits(const superblock &s) const {
  if (s.contents_bytes > options_.most_contents) {
    return fail(errc::invalid_argument, op, "more contents than are wanted", part::superblock,
                136, std::to_string(s.contents_bytes),
                "at most " + std::to_string(options_.most_contents));
  }
  const std::uint64_t metadata = s.chunk_table.bytes + s.manifest.bytes + s.seals.bytes;
  if (metadata > options_.most_metadata) {
    return fail(errc::invalid_argument, op, "more metadata than is wanted", part::superblock,
                152, std::to_string(metadata), "at most " + std::to_string(options_.most_metadata));
  }
  if (s.encrypted() && !options_.key) {
    return fail(errc::invalid_argument, op, "the image is encrypted, and there is no key",
                part::superblock, 16);
  }
  if (options_.signed_by && !s.is_signed()) {
    return fail(errc::corrupt, op, "the image is not signed", part::superblock, 16, "nothing",
                "signed with " + options_.signed_by->text());
  }
  return {};
}

done image_opener::read_signature(core &c) const {
  const std::uint64_t at = c.head.signature.offset;
  const auto room = aligned_memory::create(block_bytes);
  if (!room) return pass_on(room.error());
  const auto b = room->bytes();
  if (const auto ok = c.file.read(b, at); !ok) return ok;
  if (!all_zero(b.subspan(signature_bytes))) {
    return fail(errc::corrupt, op, "something where zeros should be", part::signature,
                at + signature_bytes);
  }
  const verifying_key key{load<decltype(verifying_key::bytes)>(b, 0)};
  const signature s{load<decltype(signature::bytes)>(b, key.bytes.size())};
  if (options_.signed_by && key != *options_.signed_by) {
    return fail(errc::corrupt, op, "signed with another key", part::signature, at, key.text(),
                options_.signed_by->text());
  }
  if (!is_signature(s, key, c.head.root)) {
    return fail(errc::corrupt, op, "no signature of this root", part::signature,
                at + key.bytes.size(), s.text());
  }
  c.signer = key;
  return {};
}

outcome<std::vector<std::byte>> image_opener::read_part(core &c, part p, const file_range &r,
                                                        const sha256 &sum, nonce n) const {
  const auto room = aligned_memory::create(to_block(r.bytes));
  if (!room) return pass_on(room.error());
  if (const auto ok = c.file.read(room->bytes(), r.offset); !ok) return pass_on(ok.error());
  const bytes_view stored = room->bytes().first(r.bytes);
  if (const sha256 there = sha256_of(stored); there != sum) {
    return fail(errc::corrupt, op, "another digest than the superblock says", p, r.offset,
                there.text(), sum.text());
  }
  if (!all_zero(room->bytes().subspan(r.bytes))) {
    return fail(errc::corrupt, op, "something where zeros should be", p, r.end());
  }
  std::vector<std::byte> bytes(r.bytes - c.head.tag());
  if (!c.opened_with) {
    std::copy(stored.begin(), stored.end(), bytes.begin());
  } else if (auto ok = c.opened_with->decrypt(n, stored, bytes); !ok) {
    ok.error().where = p;
    ok.error().offset = r.offset;
    return pass_on(ok.error());
  }
  return bytes;
}

done image_opener::read_seals(core &c) const {
  const auto bytes = read_part(c, part::seals, c.head.seals, c.head.seals_sum, nonce_of_seals);
  if (!bytes) return pass_on(bytes.error());
  // Their number was compared with that of the extents.
  for (std::size_t at = 0; at < bytes->size(); at += seal_bytes) {
    c.seals.push_back({load<decltype(sha256::bytes)>(*bytes, at)});
  }
  c.seal_of.resize(c.table.size());
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < c.table.size(); ++i) {
    if (c.table[i].is_stored()) c.seal_of[i] = next++;
  }
  return {};
}

outcome<std::shared_ptr<reader::core>> image_opener::try_parent(const core &c, int directory,
                                                                const std::string &name,
                                                                const std::string &path,
                                                                bool &replaced) {
  // Its first block says whether it is the one. What cannot be read is none.
  auto f = image_file::open_to_read(c.file.calls(), directory, name, false);
  std::array<std::byte, block_bytes> block;
  if (!f || !f->read(block, 0)) return std::shared_ptr<core>();
  const auto s = decode_superblock(block);
  if (!s || s->image != c.head.parent) return std::shared_ptr<core>();
  if (s->root != c.head.parent_root) {
    replaced = true;
    return std::shared_ptr<core>();
  }
  return open_core(directory, name, path, nullptr);
}

done image_opener::find_parent(core &c, int directory) {
  bool replaced = false;
  const auto take = [&](const std::shared_ptr<core> &p) -> done {
    if (const auto ok = check_parent_references(c.table, c.head, p->table); !ok) return ok;
    c.parent = p;
    c.chain = p->chain + 1;
    return {};
  };
  // True: taken. Among the images in a folder whose path is `prefix`.
  const auto look_in = [&](int folder, const std::string &prefix) -> outcome<bool> {
    std::vector<std::string> names = c.file.calls().names_in(folder);
    std::sort(names.begin(), names.end());
    for (const std::string &name : names) {
      if (!name.ends_with(".smi") || name.starts_with('.')) continue;
      const auto p = try_parent(c, folder, name, prefix + name, replaced);
      if (!p) return pass_on(p.error());
      if (!*p) continue;
      if (const auto ok = take(*p); !ok) return pass_on(ok.error());
      return true;
    }
    return false;
  };
  for (const std::string &path : options_.parents) {
    file_calls &calls = c.file.calls();
    const int folder = calls.open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (folder >= 0) {
      const auto there = look_in(folder, path.ends_with('/') ? path : path + "/");
      calls.close(folder);
      if (!there) return pass_on(there.error());
      if (*there) return {};
      continue;
    }
    const auto at = target_name::create(calls, path);
    if (!at) continue;
    const auto p = try_parent(c, at->directory(), at->name(), path, replaced);
    if (!p) return pass_on(p.error());
    if (*p) return take(*p);
  }
  if (options_.look_beside) {
    const auto there = look_in(directory, c.path.substr(0, c.path.rfind('/') + 1));
    if (!there) return pass_on(there.error());
    if (*there) return {};
  }
  failure f = fail_system(ENOENT, op, "the parent was not found", 64).value();
  if (replaced) f.why.code = make_error_code(errc::corrupt);
  if (replaced) f.why.reason = "the parent was replaced: its root is another";
  f.where = part::parent;
  f.expected = c.head.parent.text() + " with root " + c.head.parent_root.text();
  return pass_on(std::move(f));
}

outcome<std::shared_ptr<reader::core>> image_opener::open_core(
    int directory, const std::string &name, const std::string &path,
    const std::shared_ptr<const core> &known_parent) {
  file_calls &calls = options_.calls != nullptr ? *options_.calls : file_calls::system();
  auto file = image_file::open_to_read(calls, directory, name, options_.past_page_cache);
  if (!file) return in_file<std::shared_ptr<core>>(pass_on(file.error()), path);
  const auto c = std::make_shared<core>(path, std::move(*file));

  const auto open = [&]() -> done {
    if (++depth_ > longest_chain) {
      return fail(errc::corrupt, op, "a chain of too many parents", part::parent, 64, {},
                  "at most " + std::to_string(longest_chain));
    }
    const auto size = c->file.size();
    if (!size) return pass_on(size.error());
    if (*size < block_bytes) {
      return fail(errc::corrupt, op, "too short for an image", part::file, 0,
                  std::to_string(*size), "at least 4096");
    }
    const auto block = aligned_memory::create(block_bytes);
    if (!block) return pass_on(block.error());
    if (const auto ok = c->file.read(block->bytes(), 0); !ok) return ok;
    const auto head = decode_superblock(block->bytes());
    if (!head) return pass_on(head.error());
    c->head = *head;
    if (*size != c->head.file_bytes) {
      return fail(errc::corrupt, op, "a file of another size than it says", part::superblock,
                  24, std::to_string(*size), std::to_string(c->head.file_bytes));
    }
    if (const auto ok = check_limits(c->head); !ok) return ok;
    if (c->head.is_signed()) {
      if (const auto ok = read_signature(*c); !ok) return ok;
    }
    if (c->head.encrypted()) {
      const auto made = cipher::create(*options_.key, c->head.image);
      if (!made) return pass_on(made.error());
      c->opened_with = *made;
    }
    const superblock &s = c->head;
    const auto table =
        read_part(*c, part::chunk_table, s.chunk_table, s.chunk_table_sum, nonce_of_table);
    if (!table) return pass_on(table.error());
    const auto manifest =
        read_part(*c, part::manifest, s.manifest, s.manifest_sum, nonce_of_manifest);
    if (!manifest) return pass_on(manifest.error());
    auto records = decode_chunk_table(*table, s);
    if (!records) return pass_on(records.error());
    c->table = std::move(*records);
    auto what = decode_manifest(manifest->data(), manifest->size());
    if (!what) {
      what.error().offset = s.manifest.offset;
      return pass_on(what.error());
    }
    c->what = std::move(*what);
    if (const auto ok = check_layout(c->table, c->what.page_bytes(), s); !ok) return ok;
    if (const auto ok = check_extents(c->table, s); !ok) return ok;
    if (const auto ok = check_references(c->table, s); !ok) return ok;
    if (s.is_signed()) {
      if (const auto ok = read_seals(*c); !ok) return ok;
    }
    if (!s.incremental()) return {};
    if (known_parent) {
      if (const auto ok = check_parent_references(c->table, s, known_parent->table); !ok) return ok;
      c->parent = known_parent;
      c->chain = known_parent->chain + 1;
      return {};
    }
    return find_parent(*c, directory);
  };
  if (const auto ok = open(); !ok) return in_file<std::shared_ptr<core>>(pass_on(ok.error()), path);
  return c;
}

outcome<reader> image_opener::open(int directory, const std::string &name, const std::string &path,
                                   const std::shared_ptr<const core> &known_parent) {
  try {
    auto c = open_core(directory, name, path, known_parent);
    if (!c) return pass_on(c.error());
    return reader(std::move(*c));
  } catch (const std::bad_alloc &) {
    return in_file<reader>(fail(errc::out_of_memory, op, "no memory for the metadata"), path);
  }
}

outcome<reader> reader::open(const std::string &path, const open_options &options) {
  file_calls &calls = options.calls != nullptr ? *options.calls : file_calls::system();
  const auto at = target_name::create(calls, path);
  if (!at) return in_file<reader>(pass_on(at.error()), path);
  return image_opener(options).open(at->directory(), at->name(), path);
}

}  // namespace stillmap::image
