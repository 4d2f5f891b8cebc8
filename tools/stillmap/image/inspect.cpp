// stillmap image inspect: prints the metadata of an image.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/image/image_commands.h"

namespace stillmap::tool {
namespace {

using image::chunk_kind;

struct chunk_name {
  chunk_kind kind;
  const char *key, *text;
};
constexpr chunk_name chunk_names[] = {
    {chunk_kind::raw, "raw", "uncompressed"}, {chunk_kind::lz4, "lz4", "lz4"},
    {chunk_kind::zstd, "zstd", "zstd"},       {chunk_kind::zero, "zero", "zero"},
    {chunk_kind::same, "same", "duplicates"}, {chunk_kind::parent, "parent", "in the parent"},
};

struct chunk_sums {
  explicit chunk_sums(const image::reader &r) {
    for (const image::chunk_record &c : r.chunks()) {
      stored += c.stored;
      ++chunks[static_cast<std::size_t>(c.kind)];
    }
  }
  std::uint64_t of(chunk_kind kind) const { return chunks[static_cast<std::size_t>(kind)]; }

  std::array<std::uint64_t, std::size(chunk_names)> chunks{};  // by kind
  std::uint64_t stored = 0;                                    // bytes
};

// The memory of one tag.
struct tag_sums {
  std::uint64_t blocks = 0, addresses = 0, places = 0, memory = 0;  // memory: each page once
};

std::vector<tag_sums> by_tag(const image::manifest &m) {
  std::vector<tag_sums> out(m.tags.size());
  std::vector<bool> seen(m.pages.size());
  auto place = m.places.begin();
  for (const image::manifest::block &b : m.blocks) {
    tag_sums &t = out[b.tag];
    ++t.blocks;
    t.addresses += b.bytes;
    for (; place != m.places.end() && place->address < b.begin + b.bytes; ++place) {
      ++t.places;
      if (!seen[place->page]) t.memory += m.pages[place->page].bytes;
      seen[place->page] = true;
    }
  }
  return out;
}

std::string name_of_access(const std::vector<access_grant> &list) {
  std::vector<std::string> grants;
  for (const access_grant &g : list) {
    const std::string location = g.location.kind != location_kind::device
                                     ? fmt::format("host {}", g.location.id)
                                 : g.location.id < 0 ? "device"
                                                     : fmt::format("device {}", g.location.id);
    grants.push_back(location + (g.mode == access_mode::read_write ? " rw"
                                 : g.mode == access_mode::read     ? " r"
                                                                   : " -"));
  }
  return grants.empty() ? "no access" : join(grants, ", ");
}

std::string storage_text(const chunk_sums &n) {
  std::vector<std::string> parts;
  for (const auto &[kind, key, text] : chunk_names) {
    if (n.of(kind) != 0) parts.push_back(format_count(n.of(kind)) + ' ' + text);
  }
  return parts.empty() ? "none" : join(parts, ", ");
}

std::string uuid_text(const std::array<std::byte, 16> &uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", std::to_integer<unsigned>(uuid[i]));
  }
  return text;
}

void add_json(json_writer &json, const image::reader &r) {
  const image::superblock &h = r.superblock();
  const image::manifest &m = r.manifest();
  const chunk_sums n(r);
  json.begin_object().field("file", r.path()).field("image", h.image.text());
  json.field("root", h.root.text()).field("time_ns", h.time).field("file_bytes", h.file_bytes);
  json.field("contents_bytes", h.contents_bytes).field("stored_bytes", n.stored);
  json.field("chunk_bytes", h.chunk_bytes).field("encrypted", h.encrypted());
  const auto by = r.signer();
  by ? json.field("signed_by", by->text()) : json.nothing("signed_by");
  json.begin_object("chunks");
  for (const auto &[kind, key, text] : chunk_names) json.field(key, n.of(kind));
  json.end().begin_array("chain");
  for (std::optional<image::reader> at = r; at; at = at->parent()) {
    json.begin_object().field("file", at->path());
    json.field("image", at->superblock().image.text()).end();
  }
  json.end().begin_object("set").field("set", h.set.text()).field("images", h.set_images);
  json.field("index", h.set_index).end();
  json.begin_object("device").field("name", m.device.name);
  json.field("uuid", uuid_text(m.device.uuid)).field("memory_bytes", m.device.memory_bytes);
  json.field("page_bytes", m.device.granularity).field("driver_version", m.device.driver_version);
  json.end().begin_array("blocks");
  auto place = m.places.begin();
  for (const image::manifest::block &b : m.blocks) {
    json.begin_object().field("begin", b.begin).field("bytes", b.bytes).field("tag", m.tags[b.tag]);
    json.field("generation", b.generation).begin_array("mappings");
    for (; place != m.places.end() && place->address < b.begin + b.bytes; ++place) {
      json.begin_object().field("address", place->address).field("page", place->page);
      json.field("bytes", m.pages[place->page].bytes);
      json.field("access", name_of_access(m.access_lists[place->access])).end();
    }
    json.end().end();
  }
  json.end().begin_array("notes");
  for (const image::manifest::note &note : m.notes) {
    json.begin_object().field("name", note.name).field("bytes", note.bytes.size()).end();
  }
  json.end().end();
}

void print_head(const image::reader &r) {
  const image::superblock &h = r.superblock();
  const image::manifest &m = r.manifest();
  const chunk_sums n(r);
  fmt::print(
      "image     {}, {}; its metadata is intact (stillmap image verify checks the contents)\n",
      r.path(), human_and_exact(h.file_bytes));
  fmt::print("saved     {}, id {}\n", utc_text(h.time), h.image.text());
  fmt::print("root      {}\n", h.root.text());
  fmt::print("device    {}, {}, {}, CUDA {}.{}\n", printable(m.device.name),
             uuid_text(m.device.uuid), format_bytes(m.device.memory_bytes),
             m.device.driver_version / 1000, m.device.driver_version % 1000 / 10);
  fmt::print("contents  {} in {} pages; {} stored\n", human_and_exact(h.contents_bytes),
             format_count(m.pages.size()), format_bytes(n.stored));
  fmt::print("chunks    {} of at most {}: {}\n", format_count(h.chunks),
             format_bytes(h.chunk_bytes), storage_text(n));
  if (h.set_images > 1) {
    fmt::print("set       {}, image {} of {}\n", h.set.text(), h.set_index + 1, h.set_images);
  }
  if (h.encrypted()) fmt::print("          encrypted\n");
  if (const auto by = r.signer()) fmt::print("signed by {}\n", by->text());
  for (auto at = r.parent(); at; at = at->parent())
    fmt::print("parent    {}\n", printable(at->path()));
  for (const image::manifest::note &note : m.notes) {
    fmt::print("note      {}: {} bytes\n", printable(note.name), format_count(note.bytes.size()));
  }
}

void print_table(const image::manifest &m) {
  const std::vector<tag_sums> sums = by_tag(m);
  std::size_t width = 3;
  for (const std::string &tag : m.tags) width = std::max(width, tag.size());
  fmt::print("\n {:<{}}  {:>7}  {:>10}  {:>8}  {:>10}\n", "tag", width, "blocks", "addresses",
             "mappings", "memory");
  for (std::size_t i = 0; i < m.tags.size(); ++i) {
    const tag_sums &t = sums[i];
    fmt::print(" {:<{}}  {:>7}  {:>10}  {:>8}  {:>10}\n",
               m.tags[i].empty() ? "-" : printable(m.tags[i]), width, format_count(t.blocks),
               format_bytes(t.addresses), format_count(t.places), format_bytes(t.memory));
  }
}

// Blocks, and in each of them runs of places with the same access.
void print_tree(const image::manifest &m) {
  auto place = m.places.begin();
  for (const image::manifest::block &b : m.blocks) {
    fmt::print("\n{} {}, {}, generation {}\n", hexadecimal(b.begin), format_bytes(b.bytes),
               m.tags[b.tag].empty() ? "no tag" : printable(m.tags[b.tag]),
               format_count(b.generation));
    while (place != m.places.end() && place->address < b.begin + b.bytes) {
      const auto first = place;
      std::uint64_t end = place->address;
      for (; place != m.places.end() && place->address == end && place->access == first->access &&
             place->address < b.begin + b.bytes;
           ++place) {
        end += m.pages[place->page].bytes;
      }
      fmt::print("  {} {}, {} pages from {}, {}\n", hexadecimal(first->address),
                 format_bytes(end - first->address),
                 format_count(static_cast<std::uint64_t>(place - first)), format_count(first->page),
                 name_of_access(m.access_lists[first->access]));
    }
  }
}

}  // namespace

outcome<exit_status> run_inspect(const inspect_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto opened, open_images(o.file, o.image));
  const bool is_set = opened.front().path() != o.file;
  if (o.json) {
    json_writer json;
    if (is_set) {
      json.begin_object().field("folder", o.file);
      json.field("set", opened.front().superblock().set.text()).begin_array("images");
    }
    for (const image::reader &r : opened) add_json(json, r);
    if (is_set) json.end().end();
    fmt::print("{}\n", json.text());
    return exit_ok;
  }
  if (is_set) {
    fmt::print("set       {}, {} images, id {}\n", o.file, format_count(opened.size()),
               opened.front().superblock().set.text());
  }
  for (const image::reader &r : opened) {
    if (is_set) fmt::print("\n");
    print_head(r);
    o.tree ? print_tree(r.manifest()) : print_table(r.manifest());
  }
  return exit_ok;
}

}  // namespace stillmap::tool
