#include "stillmap/checkpoint/image/image_set.h"

#include <fcntl.h>

#include <charconv>
#include <system_error>
#include <utility>

#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/checkpoint/image/internal/random.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

constexpr std::array<unsigned char, 8> set_magic = {0x89, 'S', 'M', 'S', 0x0d, 0x0a, 0x1a, 0x0a};
constexpr std::size_t head_bytes = 64, member_bytes = 64, sum_bytes = sizeof(digest);
constexpr int max_replacements = 16;  // of a set while it is being opened
constexpr std::string_view before_index = "device-", after_set = ".smi";

tl::unexpected<error> wrong_set(std::uint64_t at, const char *reason, std::string found = {},
                                std::string expected = {}) {
  return checkpoint::file_error(errc::corrupt, reason, part::set, at, std::move(found),
                                std::move(expected));
}

std::string file_of(const std::string &folder) {
  return folder + "/set";
}

std::vector<std::byte> encode(const image_set &s) {
  std::vector<std::byte> b(head_bytes + s.images.size() * member_bytes + sum_bytes);
  store(b, 0, set_magic);
  store(b, 8, std::uint32_t{1});
  store(b, 12, static_cast<std::uint32_t>(s.images.size()));
  store(b, 16, s.set.bytes);
  for (std::size_t i = 0; i < s.images.size(); ++i) {
    const std::size_t at = head_bytes + i * member_bytes;
    store(b, at, s.images[i].image.bytes);
    store(b, at + 16, s.images[i].file_bytes);
    store(b, at + 24, s.images[i].root.bytes);
  }
  const std::size_t end = b.size() - sum_bytes;
  store(b, end, digest_of(bytes_view(b).first(end)).bytes);
  return b;
}

result<image_set> decode(bytes_view b) {
  if (b.size() < head_bytes + member_bytes + sum_bytes ||
      load<decltype(set_magic)>(b, 0) != set_magic) {
    return wrong_set(0, "not a set");
  }
  const std::size_t end = b.size() - sum_bytes;
  const digest sum = digest_of(b.first(end)), there{load<decltype(digest::bytes)>(b, end)};
  if (sum != there) return wrong_set(end, "the set is damaged", there.text(), sum.text());
  if (const auto major = load<std::uint32_t>(b, 8); major != 1) {
    return checkpoint::file_error(errc::not_supported, "unsupported version of the format",
                                  part::set, 8, std::to_string(major), "1");
  }
  const auto count = load<std::uint32_t>(b, 12);
  if (count > max_images_in_set || end != head_bytes + count * member_bytes) {
    return wrong_set(12, "the number of images does not match the size of the file",
                     std::to_string(count));
  }
  image_set s;
  s.set.bytes = load<decltype(image_id::bytes)>(b, 16);
  if (s.set.is_zero()) return wrong_set(16, "the set has no id");
  if (!all_zero(b.subspan(32, 32))) return wrong_set(32, "reserved bytes are not zero");
  for (std::size_t at = head_bytes; at < end; at += member_bytes) {
    set_member &m = s.images.emplace_back();
    m.image.bytes = load<decltype(image_id::bytes)>(b, at);
    m.file_bytes = load<std::uint64_t>(b, at + 16);
    m.root.bytes = load<decltype(sha256::bytes)>(b, at + 24);
    if (load<std::uint64_t>(b, at + 56) != 0) {
      return wrong_set(at + 56, "reserved bytes are not zero");
    }
  }
  return s;
}

status write_file(const std::string &file, const image_set &what, bool replace,
                  checkpoint::file_system &files) {
  if (what.set.is_zero() || what.images.empty() || what.images.size() > max_images_in_set) {
    return make_error(errc::invalid_argument, "the set has no id, no images, or too many");
  }
  const std::vector<std::byte> bytes = encode(what);
  STILLMAP_ASSIGN_OR_RETURN(const auto target, checkpoint::target_name::create(files, file));
  STILLMAP_ASSIGN_OR_RETURN(auto temp, checkpoint::atomic_file::create(target, false));
  STILLMAP_RETURN_IF_ERROR(temp.file().write(bytes, 0));
  STILLMAP_RETURN_IF_ERROR(temp.file().sync_data());
  return temp.publish(replace);
}

result<image_set> read_file(int directory, const std::string &file,
                            checkpoint::file_system &files) {
  STILLMAP_ASSIGN_OR_RETURN(auto f,
                            checkpoint::block_file::open_to_read(files, directory, file, false));
  STILLMAP_ASSIGN_OR_RETURN(const std::uint64_t size, f.size());
  if (size > head_bytes + max_images_in_set * member_bytes + sum_bytes) {
    return wrong_set(0, "not a set: the file is too large", std::to_string(size));
  }
  std::vector<std::byte> bytes(size);
  STILLMAP_RETURN_IF_ERROR(f.read(bytes, 0));
  return decode(bytes);
}

result<std::vector<reader>> open_images(const std::string &folder, const image_set &s,
                                        const open_options &options) {
  std::vector<reader> images;
  for (std::uint32_t i = 0; i < s.images.size(); ++i) {
    STILLMAP_ASSIGN_OR_RETURN(auto r, open_in_set(folder, s, i, options));
    images.push_back(std::move(r));
  }
  return images;
}

}  // namespace

std::string name_in_set(std::uint32_t index, const image_id &set) {
  return std::string(before_index) + std::to_string(index) + "." + set.text() +
         std::string(after_set);
}

std::optional<set_position> parse_name_in_set(std::string_view name) {
  if (!name.starts_with(before_index)) return std::nullopt;
  set_position p;
  const char *const end = name.data() + name.size();
  const auto [after, wrong] = std::from_chars(name.data() + before_index.size(), end, p.index);
  if (wrong != std::errc{} || after == end) return std::nullopt;
  const std::string_view id(after + 1, static_cast<std::size_t>(end - after) - 1);
  if (!parse_hex(id.substr(0, 2 * p.set.bytes.size()), p.set)) return std::nullopt;
  // Names are canonical: no leading zeros.
  if (name != name_in_set(p.index, p.set)) return std::nullopt;
  return p;
}

result<image_id> make_id() {
  const operation_scope scope("image::make_id");
  image_id id;
  STILLMAP_RETURN_IF_ERROR(fill_random(id.bytes));
  return id;
}

status write_set(const std::string &folder, const image_set &what, const set_options &options) {
  return with_host_memory("image::write_set", [&] {
    const std::string file = file_of(folder);  // first: nothing may fail once the set is there
    return checkpoint::in_file(write_file(file, what, options.replace, *options.files), file);
  });
}

result<image_set> read_set(const std::string &folder, checkpoint::file_system &files) {
  return with_host_memory("image::read_set", [&] {
    const std::string file = file_of(folder);
    return checkpoint::in_file(read_file(AT_FDCWD, file, files), file);
  });
}

result<image_set> read_set(int directory, checkpoint::file_system &files) {
  return with_host_memory("image::read_set", [&] { return read_file(directory, "set", files); });
}

result<reader> open_in_set(const std::string &folder, const image_set &set, std::uint32_t index,
                           const open_options &options) {
  return with_host_memory("image::open_in_set", [&]() -> result<reader> {
    const std::string path = folder + "/" + name_in_set(index, set.set);
    auto r = reader::open(path, options);
    if (!r) return r;
    const superblock &h = r->superblock();
    const set_member named{h.image, h.file_bytes, h.root};
    if (named != set.images[index]) {
      return checkpoint::in_file(wrong_set(0, "the image is not the one that the set names",
                                           h.root.text(), set.images[index].root.text()),
                                 path);
    }
    if (h.set != set.set || h.set_images != set.images.size() || h.set_index != index) {
      return checkpoint::in_file(
          wrong_set(48, "the image belongs to another set or has another index", h.set.text(),
                    set.set.text()),
          path);
    }
    return r;
  });
}

bool depends_on(const reader &parent, const image_set &set) {
  for (std::optional<reader> at = parent; at; at = at->parent()) {
    for (const set_member &m : set.images) {
      if (m.image == at->superblock().image) return true;
    }
  }
  return false;
}

result<std::vector<reader>> open_set(const std::string &folder, const open_options &options) {
  return with_host_memory("image::open_set", [&]() -> result<std::vector<reader>> {
    auto s = read_set(folder, *options.files);
    for (int replaced = 0; s; ++replaced) {
      auto images = open_images(folder, *s, options);
      if (images) return images;
      auto now = read_set(folder, *options.files);
      if (!now || now->set == s->set || replaced == max_replacements) return images;
      s = std::move(now);
    }
    return tl::unexpected(s.error());
  });
}

}  // namespace stillmap::image
