#include <chrono>

#include "stillmap/checkpoint/common/internal/wait_idle.h"
#include "stillmap/checkpoint/image/set_writer.h"
#include "stillmap/checkpoint/snapshot/internal/all_or_none.h"
#include "stillmap/checkpoint/snapshot/internal/failures.h"
#include "stillmap/checkpoint/snapshot/internal/saving.h"
#include "stillmap/checkpoint/snapshot/set.h"

namespace stillmap::snapshot {
namespace {

constexpr const char *op = "snapshot::save_set";

template <class T>
image::outcome<T> of(image::outcome<T> o, const image::set_writer &set, std::size_t part) {
  return image::in_file(std::move(o), set.path(static_cast<std::uint32_t>(part)));
}

image::done check(std::span<const set_part> parts, const save_set_options &how) {
  if (!how.parents.empty() && how.parents.size() != parts.size()) {
    return image::fail(errc::invalid_argument, op, "another number of parents than of parts",
                       image::part::set, 0, std::to_string(how.parents.size()),
                       std::to_string(parts.size()));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (parts[i].on != parts[k].on) continue;
      for (const std::string &tag : parts[i].tags) {
        if (std::find(parts[k].tags.begin(), parts[k].tags.end(), tag) == parts[k].tags.end()) {
          continue;
        }
        return image::fail(errc::invalid_argument, op, "a tag of one device in two parts",
                           image::part::set, i, tag);
      }
    }
  }
  return {};
}

image::done check_replaced(const image::set_writer &set, const save_set_options &how) {
  if (!set.replaces()) return {};
  for (const image::reader &parent : how.parents) {
    if (!image::needs(parent, *set.replaces())) continue;
    return image::fail(errc::invalid_argument, op,
                       "a set cannot replace what its own parents need: save it elsewhere",
                       image::part::set, 0, parent.path());
  }
  return {};
}

// Of all images: they are of one moment.
std::uint64_t now() {
  using namespace std::chrono;
  return static_cast<std::uint64_t>(
      duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

// How each image is written.
std::vector<image::write_options> options_of(const image::set_writer &set, std::size_t parts,
                                             const save_set_options &how, company &all) {
  std::vector<image::write_options> out(parts, how.image);
  const std::uint64_t time = how.image.time.value_or(now());
  for (std::uint32_t part = 0; part < parts; ++part) {
    image::write_options &image = out[part];
    set.place(part, image);
    image.threads = share_of_threads(how.image.threads, parts);
    image.time = time;
    image.parent.reset();
    if (!how.parents.empty()) image.parent = how.parents[part];
    image.on_progress = [&all, &how, part](const image::write_progress &p) {
      return all.tell([&] { return !how.on_progress || how.on_progress({part, p}); });
    };
  }
  return out;
}

}  // namespace

image::outcome<written_set> save_set(std::span<const set_part> parts, const std::string &folder,
                                     const save_set_options &how) {
  if (const auto ok = check(parts, how); !ok) return tl::unexpected(ok.error());
  const image::set_options options{how.image.replace, how.image.calls};
  auto set = image::set_writer::create(folder, static_cast<std::uint32_t>(parts.size()), options);
  if (!set) return tl::unexpected(set.error());
  if (const auto ok = image::in_file(check_replaced(*set, how), folder); !ok) {
    return tl::unexpected(ok.error());
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (status s = checkpoint::wait_until_idle(parts[i].on, parts[i].idle); !s) {
      return of<written_set>(pass_on(s.error()), *set, i);
    }
  }
  std::vector<saving> memory;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto m = of(saving::create(parts[i].on, parts[i].tags, parts[i].notes), *set, i);
    if (!m) return tl::unexpected(m.error());
    memory.push_back(std::move(*m));
  }
  written_set out{set->set(), std::vector<image::written>(parts.size())};
  company all;
  const auto images = options_of(*set, parts.size(), how, all);
  const auto written = for_each_part(all, parts.size(), [&](std::size_t i) -> image::done {
    const std::string path = set->path(static_cast<std::uint32_t>(i));
    const auto w = of(memory[i].write(path, images[i]), *set, i);
    if (!w) return tl::unexpected(w.error());
    out.images[i] = *w;
    return {};
  });
  if (!written) return tl::unexpected(written.error());
  std::vector<image::set_member> members;
  for (const image::written &w : out.images) members.push_back({w.image, w.file_bytes, w.root});
  if (const auto ok = set->commit(std::move(members)); !ok) return tl::unexpected(ok.error());
  return out;
}

}  // namespace stillmap::snapshot
