#include "stillmap/checkpoint/idle.h"
#include "stillmap/image/workers.h"
#include "stillmap/snapshot/device_contents.h"
#include "stillmap/snapshot/failures.h"
#include "stillmap/snapshot/layout_manifest.h"
#include "stillmap/snapshot/snapshot.h"

namespace stillmap::snapshot {

image::outcome<image::written> save(const device &d, std::span<const std::string> tags,
                                    const std::string &path, const save_options &how) {
  if (status s = checkpoint::wait_until_idle(d, how.idle); !s) return pass_on(s.error());
  const auto memory = checkpoint::describe(d, tags);
  if (!memory) return pass_on(memory.error());
  image::manifest what = manifest_of(d, memory->layout);
  what.notes = how.notes;
  const unsigned threads = image::threads_for(how.image.threads, memory->layout.pages.size());
  const auto contents = device_contents::create(d, memory->layout, threads);
  if (!contents) return pass_on(contents.error());
  if (how.image.parent) {
    const std::uint32_t chunk =
        how.image.chunk_bytes != 0 ? how.image.chunk_bytes : how.image.parent->head().chunk_bytes;
    if (status s = (*contents)->learn_digests(d, chunk); !s) return pass_on(s.error());
  }
  return image::write(path, what, **contents, how.image);
}

}  // namespace stillmap::snapshot
