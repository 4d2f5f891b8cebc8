#include <algorithm>

#include "stillmap/checkpoint/snapshot/internal/all_or_none.h"
#include "stillmap/checkpoint/snapshot/internal/restoring.h"
#include "stillmap/checkpoint/snapshot/set.h"

namespace stillmap::snapshot {
namespace {

constexpr const char *op = "snapshot::restore_set";

bool has(const image::reader &r, const std::string &tag) {
  const auto &tags = r.what().tags;
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

image::done check(std::span<const device> devices, std::span<const image::reader> images,
                  std::span<const std::string> tags) {
  if (devices.size() != images.size() || images.empty()) {
    return image::fail(errc::invalid_argument, op,
                       "the set is of another number of devices than it is to go to",
                       image::part::set, 12, std::to_string(images.size()),
                       std::to_string(devices.size()));
  }
  for (const std::string &tag : tags) {
    if (std::none_of(images.begin(), images.end(), [&](const auto &r) { return has(r, tag); })) {
      return image::fail(errc::invalid_argument, op, "no image has memory of that tag",
                         image::part::set, 0, tag);
    }
  }
  return {};
}

// Nothing: the image has none of the tags.
image::outcome<std::optional<restoring>> begin(const device &d, const image::reader &from,
                                               const restore_options &how) {
  std::vector<std::string> tags;
  for (const std::string &tag : how.tags) {
    if (has(from, tag)) tags.push_back(tag);
  }
  if (tags.empty() && !how.tags.empty()) return std::optional<restoring>();
  auto r = image::in_file(restoring::create(d, from, tags, how), from.path());
  if (!r) return tl::unexpected(r.error());
  return std::move(*r);
}

image::outcome<restored> nothing(const device &d) {
  auto none = checkpoint::restored_memory::reserve(d, {});
  if (!none) return tl::unexpected(image::failure{none.error(), {}, image::part::file, 0, {}, {}});
  return restored{std::move(*none), {}, {}};
}

// Of all images together.
class progress_of_all {
 public:
  progress_of_all(const restore_options &how, std::uint64_t of_bytes, std::size_t parts)
      : how_(how), told_{0, of_bytes}, of_each_(parts) {}

  // Requires: one at a time.
  bool tell(std::size_t part, std::uint64_t bytes) {
    told_.bytes += bytes - of_each_[part];
    of_each_[part] = bytes;
    return !how_.on_progress || how_.on_progress(told_);
  }

 private:
  const restore_options &how_;
  restore_progress told_;
  std::vector<std::uint64_t> of_each_;
};

image::done fetch_all(std::vector<std::optional<restoring>> &memory,
                      std::span<const image::reader> images, const restore_options &how) {
  std::uint64_t bytes = 0;
  for (const auto &m : memory) bytes += m ? m->contents_bytes() : 0;
  progress_of_all progress(how, bytes, memory.size());
  company all;
  return for_each_part(all, memory.size(), [&](std::size_t i) -> image::done {
    if (!memory[i]) return {};
    restore_options one = how;
    one.threads = share_of_threads(static_cast<unsigned>(how.threads), memory.size());
    one.on_progress = [&, i](const restore_progress &p) {
      return all.tell([&] { return progress.tell(i, p.bytes); });
    };
    return image::in_file(memory[i]->fetch(one), images[i].path());
  });
}

}  // namespace

image::outcome<restored_set> restore_set(std::span<const device> devices,
                                         std::span<const image::reader> images,
                                         const restore_options &how) {
  if (const auto ok = check(devices, images, how.tags); !ok) return tl::unexpected(ok.error());
  std::vector<std::optional<restoring>> memory;
  for (std::size_t i = 0; i < images.size(); ++i) {
    auto m = begin(devices[i], images[i], how);
    if (!m) return tl::unexpected(m.error());
    memory.push_back(std::move(*m));
  }
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (!memory[i]) continue;
    const auto ok = image::in_file(memory[i]->reserve(), images[i].path());
    if (!ok) return tl::unexpected(ok.error());
  }
  if (const auto ok = fetch_all(memory, images, how); !ok) return tl::unexpected(ok.error());
  restored_set out{images.front().head().set, {}};
  for (std::size_t i = 0; i < images.size(); ++i) {
    auto r = image::in_file(memory[i] ? std::move(*memory[i]).finish() : nothing(devices[i]),
                            images[i].path());
    if (!r) return tl::unexpected(r.error());
    out.devices.push_back(std::move(*r));
  }
  return out;
}

image::outcome<restored_set> restore_set(std::span<const device> devices, const std::string &folder,
                                         const restore_options &how) {
  const auto images = image::open_set(folder, how.image);
  if (!images) return tl::unexpected(images.error());
  return image::in_file(restore_set(devices, *images, how), folder);
}

}  // namespace stillmap::snapshot
