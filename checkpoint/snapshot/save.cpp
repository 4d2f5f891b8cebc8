#include "stillmap/checkpoint/common/internal/wait_idle.h"
#include "stillmap/checkpoint/image/internal/parallel_for.h"
#include "stillmap/checkpoint/snapshot/internal/failures.h"
#include "stillmap/checkpoint/snapshot/internal/layout_manifest.h"
#include "stillmap/checkpoint/snapshot/internal/saving.h"

namespace stillmap::snapshot {

image::outcome<saving> saving::create(const device &d, std::span<const std::string> tags,
                                      const std::vector<image::manifest::note> &notes) {
  auto memory = checkpoint::describe(d, tags);
  if (!memory) return pass_on(memory.error());
  image::manifest what = manifest_of(d, memory->layout);
  what.notes = notes;
  return saving(d, std::move(memory->layout), std::move(what));
}

image::outcome<image::written> saving::write(const std::string &path,
                                             const image::write_options &how) {
  const unsigned threads = image::threads_for(how.threads, layout_.pages.size());
  const auto contents = device_contents::create(device_, layout_, threads);
  if (!contents) return pass_on(contents.error());
  if (how.parent) {
    const std::uint32_t chunk =
        how.chunk_bytes != 0 ? how.chunk_bytes : how.parent->head().chunk_bytes;
    (*contents)->learn_digests(device_, chunk);
  }
  return image::write(path, what_, **contents, how);
}

image::outcome<image::written> save(const device &d, std::span<const std::string> tags,
                                    const std::string &path, const save_options &how) {
  if (status s = checkpoint::wait_until_idle(d, how.idle); !s) return pass_on(s.error());
  auto memory = saving::create(d, tags, how.notes);
  if (!memory) return tl::unexpected(memory.error());
  return memory->write(path, how.image);
}

}  // namespace stillmap::snapshot
