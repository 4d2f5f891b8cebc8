#include <algorithm>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/checkpoint/snapshot/internal/all_or_none.h"
#include "stillmap/checkpoint/snapshot/restore_operation.h"
#include "stillmap/checkpoint/snapshot/set.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::snapshot {
namespace {

bool has(const image::reader &r, const std::string &tag) {
  const auto &tags = r.manifest().tags;
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

status check(std::span<const device> devices, std::span<const image::reader> images,
             std::span<const std::string> tags) {
  if (devices.size() != images.size() || images.empty()) {
    return checkpoint::file_error(
        errc::invalid_argument, "the number of devices is not the number of images in the set",
        image::part::set, 12, std::to_string(images.size()), std::to_string(devices.size()));
  }
  for (const std::string &tag : tags) {
    if (std::none_of(images.begin(), images.end(), [&](const auto &r) { return has(r, tag); })) {
      return checkpoint::file_error(errc::invalid_argument, "no image has memory of this tag",
                                    image::part::set, 0, tag);
    }
  }
  return {};
}

// Empty if the image has none of the requested tags.
result<std::optional<restore_operation>> begin(const device &d, const image::reader &from,
                                               const restore_options &options) {
  std::vector<std::string> tags;
  for (const std::string &tag : options.tags) {
    if (has(from, tag)) tags.push_back(tag);
  }
  if (tags.empty() && !options.tags.empty()) return std::optional<restore_operation>();
  STILLMAP_ASSIGN_OR_RETURN(
      auto r, checkpoint::in_file(restore_operation::create(d, from, tags, options), from.path()));
  return std::optional(std::move(r));
}

result<restored> nothing(const device &d) {
  STILLMAP_ASSIGN_OR_RETURN(auto none, checkpoint::restored_memory::reserve(d, {}));
  return restored{std::move(none), {}, {}};
}

// Sums the progress of all images.
class total_progress {
 public:
  total_progress(const restore_options &options, std::uint64_t total_bytes, std::size_t parts)
      : options_(options), total_{0, total_bytes}, by_part_(parts) {}

  // Threads: externally synchronised.
  void update(std::size_t part, std::uint64_t bytes) {
    total_.bytes += bytes - by_part_[part];
    by_part_[part] = bytes;
    if (options_.on_progress) options_.on_progress(total_);
  }

 private:
  const restore_options &options_;
  restore_progress total_;
  std::vector<std::uint64_t> by_part_;
};

status fetch_all(std::vector<std::optional<restore_operation>> &memory,
                 std::span<const image::reader> images, const restore_options &options) {
  std::uint64_t bytes = 0;
  for (const auto &m : memory) bytes += m ? m->contents_bytes() : 0;
  total_progress progress(options, bytes, memory.size());
  part_group all(options.cancel);
  return for_each_part(all, memory.size(), [&](std::size_t i) -> status {
    if (!memory[i]) return {};
    restore_options one = options;
    one.threads = share_of_threads(static_cast<unsigned>(options.threads), memory.size());
    one.on_progress = [&, i](const restore_progress &p) {
      all.report([&] { progress.update(i, p.bytes); });
    };
    one.cancel = all.token();
    return checkpoint::in_file(memory[i]->fetch(one), images[i].path());
  });
}

}  // namespace

result<restored_set> restore_set(std::span<const device> devices,
                                 std::span<const image::reader> images,
                                 const restore_options &options) {
  return with_host_memory("snapshot::restore_set", [&]() -> result<restored_set> {
    STILLMAP_RETURN_IF_ERROR(check(devices, images, options.tags));
    std::vector<std::optional<restore_operation>> memory;
    for (std::size_t i = 0; i < images.size(); ++i) {
      STILLMAP_ASSIGN_OR_RETURN(auto m, begin(devices[i], images[i], options));
      memory.push_back(std::move(m));
    }
    for (std::size_t i = 0; i < images.size(); ++i) {
      if (!memory[i]) continue;
      STILLMAP_RETURN_IF_ERROR(checkpoint::in_file(memory[i]->reserve(), images[i].path()));
    }
    STILLMAP_RETURN_IF_ERROR(fetch_all(memory, images, options));
    restored_set out{images.front().superblock().set, {}};
    for (std::size_t i = 0; i < images.size(); ++i) {
      STILLMAP_ASSIGN_OR_RETURN(
          auto r,
          checkpoint::in_file(memory[i] ? std::move(*memory[i]).finish() : nothing(devices[i]),
                              images[i].path()));
      out.devices.push_back(std::move(r));
    }
    return out;
  });
}

result<restored_set> restore_set(std::span<const device> devices, const std::string &folder,
                                 const restore_options &options) {
  return with_host_memory("snapshot::restore_set", [&]() -> result<restored_set> {
    STILLMAP_ASSIGN_OR_RETURN(const auto images, image::open_set(folder, options.image));
    return checkpoint::in_file(restore_set(devices, images, options), folder);
  });
}

}  // namespace stillmap::snapshot
