#include <algorithm>
#include <chrono>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/checkpoint/image/set_writer.h"
#include "stillmap/checkpoint/snapshot/internal/all_or_none.h"
#include "stillmap/checkpoint/snapshot/save_operation.h"
#include "stillmap/checkpoint/snapshot/set.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::snapshot {
namespace {

template <class T>
result<T> in_part(result<T> r, const image::set_writer &set, std::size_t part) {
  if (r) return r;
  // The part is the subject; a tag that the error is about already is where in it.
  const error &e = r.error();
  const std::string &about = e.detail().subject;
  const std::string path = set.path(static_cast<std::uint32_t>(part));
  if (!about.empty() && about != path) {
    r.error() = e.with({.subject = path, .where = about});
  } else {
    r.error() = e.about(path);
  }
  return r;
}

status check(std::span<const set_part> parts, const save_set_options &options) {
  if (!options.parents.empty() && options.parents.size() != parts.size()) {
    return checkpoint::file_error(
        errc::invalid_argument, "the number of parents is not the number of parts",
        image::part::set, 0, std::to_string(options.parents.size()), std::to_string(parts.size()));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (parts[i].device != parts[k].device) continue;
      for (const std::string &tag : parts[i].tags) {
        if (std::find(parts[k].tags.begin(), parts[k].tags.end(), tag) == parts[k].tags.end()) {
          continue;
        }
        return checkpoint::file_error(errc::invalid_argument,
                                      "two parts have the same tag of one device", image::part::set,
                                      i, tag);
      }
    }
  }
  return {};
}

status check_replaced(const image::set_writer &set, const save_set_options &options) {
  if (!set.replaced_set()) return {};
  for (const image::reader &parent : options.parents) {
    if (!image::depends_on(parent, *set.replaced_set())) continue;
    return checkpoint::file_error(
        errc::invalid_argument,
        "a set cannot replace a set that its parents depend on; save it in "
        "another folder",
        image::part::set, 0, parent.path());
  }
  return {};
}

std::uint64_t now() {
  using namespace std::chrono;
  return static_cast<std::uint64_t>(
      duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

// The options of each image. All images get the same time.
std::vector<image::write_options> options_of_images(const image::set_writer &set, std::size_t parts,
                                                    const save_set_options &options,
                                                    part_group &all) {
  std::vector<image::write_options> out(parts, options.image);
  const std::uint64_t time = options.image.time.value_or(now());
  for (std::uint32_t part = 0; part < parts; ++part) {
    image::write_options &image = out[part];
    set.set_membership(part, image);
    image.threads = share_of_threads(options.image.threads, parts);
    image.time = time;
    image.parent = options.parents.empty() ? std::nullopt : std::optional(options.parents[part]);
    image.on_progress = [&all, &options, part](const image::write_progress &p) {
      if (options.on_progress) all.report([&] { options.on_progress({part, p}); });
    };
    image.cancel = all.token();
  }
  return out;
}

}  // namespace

result<written_set> save_set(std::span<const set_part> parts, const std::string &folder,
                             const save_set_options &options) {
  return with_host_memory("snapshot::save_set", [&]() -> result<written_set> {
    STILLMAP_RETURN_IF_ERROR(check(parts, options));
    STILLMAP_ASSIGN_OR_RETURN(
        auto set, image::set_writer::create(
                      folder, static_cast<std::uint32_t>(parts.size()),
                      {options.image.replace, options.image.force, options.image.files}));
    STILLMAP_RETURN_IF_ERROR(checkpoint::in_file(check_replaced(set, options), folder));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      STILLMAP_RETURN_IF_ERROR(
          in_part(checkpoint::wait_until_idle(parts[i].device, parts[i].idle), set, i));
    }
    std::vector<save_operation> memory;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      STILLMAP_ASSIGN_OR_RETURN(
          auto m, in_part(save_operation::create(parts[i].device, parts[i].tags, parts[i].notes,
                                                 parts[i].published),
                          set, i));
      memory.push_back(std::move(m));
    }
    written_set out{set.set(), std::vector<image::written>(parts.size())};
    part_group all(options.cancel);
    const auto images = options_of_images(set, parts.size(), options, all);
    STILLMAP_RETURN_IF_ERROR(for_each_part(all, parts.size(), [&](std::size_t i) -> status {
      const std::string path = set.path(static_cast<std::uint32_t>(i));
      STILLMAP_ASSIGN_OR_RETURN(out.images[i],
                                checkpoint::in_file(memory[i].write(path, images[i]), path));
      return {};
    }));
    std::vector<image::set_member> members;
    for (const image::written &w : out.images) members.push_back({w.image, w.file_bytes, w.root});
    STILLMAP_RETURN_IF_ERROR(set.commit(std::move(members)));
    return out;
  });
}

}  // namespace stillmap::snapshot
