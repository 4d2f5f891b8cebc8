// Snapshots: memory saved as image files, and restored.
#include "stillmap/checkpoint/snapshot/snapshot.h"

#include <memory>
#include <stop_token>
#include <string>

#include "stillmap/c_api/internal/objects.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::c_api {
namespace {

// A progress callback of the program, and how it cancels.
struct progress_forwarder {
  stillmap_progress_callback call;
  void *user;
  std::stop_source stop{};

  void operator()(std::uint64_t bytes, std::uint64_t total) {
    if (call(bytes, total, user) != 0) stop.request_stop();
  }
};

result<snapshot::restored *> find_restored(const stillmap_restored *handle) noexcept {
  return find<snapshot::restored>(handle, handle_kind::restored);
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_snapshot_save(stillmap_device *device, const char *path,
                                       const char *const *tags, size_t tag_count,
                                       const stillmap_save_options *options,
                                       stillmap_saved *saved) noexcept {
  return enter("stillmap_snapshot_save", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
    if (path == nullptr) return missing("the path is NULL");
    STILLMAP_RETURN_IF_ERROR(check_optional_struct(saved));
    STILLMAP_ASSIGN_OR_RETURN(const auto names, texts_of(tags, tag_count));
    STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(options));
    STILLMAP_RETURN_IF_ERROR(
        check_choice(o.compression, STILLMAP_COMPRESSION_ZSTD, "no such stillmap_compression"));
    snapshot::save_options with;
    with.image.compress = static_cast<image::codec>(o.compression);
    with.image.replace = o.replace != 0;
    with.image.force = o.force != 0;
    with.image.verify = o.skip_verify == 0;
    with.image.threads = o.threads;
    if (o.parent != nullptr) {
      STILLMAP_ASSIGN_OR_RETURN(with.image.parent, image::reader::open(o.parent));
    }
    progress_forwarder progress{o.on_progress, o.user};
    if (o.on_progress != nullptr) {
      with.image.cancel = progress.stop.get_token();
      with.image.on_progress = [&progress](const image::write_progress &p) {
        if (p.phase == image::write_phase::contents) progress(p.bytes, p.total_bytes);
      };
    }
    STILLMAP_ASSIGN_OR_RETURN(const image::written w, snapshot::save(*d, names, path, with));
    stillmap_saved all{};
    all.file_bytes = w.file_bytes;
    all.contents_bytes = w.contents_bytes;
    all.stored_bytes = w.stored_bytes;
    all.chunks = w.chunks;
    all.zero_chunks = w.zero_chunks;
    all.same_chunks = w.same_chunks;
    all.parent_chunks = w.parent_chunks;
    all.compressed_chunks = w.compressed_chunks;
    write_struct(saved, all);
    return {};
  });
}

stillmap_status stillmap_snapshot_restore(stillmap_device *device, const char *path,
                                          const stillmap_restore_options *options,
                                          stillmap_restored **restored) noexcept {
  return create("stillmap_snapshot_restore", handle_kind::restored, restored,
                [&]() -> result<std::unique_ptr<snapshot::restored>> {
                  STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
                  if (path == nullptr) return missing("the path is NULL");
                  STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(options));
                  snapshot::restore_options with;
                  STILLMAP_ASSIGN_OR_RETURN(with.tags, texts_of(o.tags, o.tag_count));
                  with.relocate = o.relocate != 0;
                  with.threads = o.threads;
                  progress_forwarder progress{o.on_progress, o.user};
                  if (o.on_progress != nullptr) {
                    with.cancel = progress.stop.get_token();
                    with.on_progress = [&progress](const snapshot::restore_progress &p) {
                      progress(p.bytes, p.total_bytes);
                    };
                  }
                  STILLMAP_ASSIGN_OR_RETURN(auto back, snapshot::restore(*d, path, with));
                  return std::make_unique<snapshot::restored>(std::move(back));
                });
}

stillmap_status stillmap_restored_get_count(stillmap_restored *restored, size_t *blocks) noexcept {
  return enter("stillmap_restored_get_count", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(const snapshot::restored *const r, find_restored(restored));
    if (blocks == nullptr) return missing("the place for the count is NULL");
    *blocks = r->memory.layout().blocks.size();
    return {};
  });
}

stillmap_status stillmap_restored_get_block(stillmap_restored *restored, size_t index,
                                            stillmap_restored_block *block) noexcept {
  return enter("stillmap_restored_get_block", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(const snapshot::restored *const r, find_restored(restored));
    STILLMAP_RETURN_IF_ERROR(check_struct(block, sizeof *block));
    const checkpoint::memory_layout &layout = r->memory.layout();
    if (index >= layout.blocks.size()) {
      return make_error(errc::invalid_argument, "no such block", index, layout.blocks.size(),
                        error_unit::items);
    }
    const auto &from = layout.blocks[index];
    stillmap_restored_block all{};
    all.address = from.range.begin.pointer();
    all.bytes = from.range.bytes;
    all.mapped_bytes = layout.mapped_bytes(from.range);
    all.original_address =
        index < r->original_ranges.size() ? r->original_ranges[index].begin.pointer() : all.address;
    all.tag = from.tag.c_str();
    write_struct(block, all);
    return {};
  });
}

stillmap_status stillmap_restored_release(stillmap_restored *restored) noexcept {
  return destroy<snapshot::restored>("stillmap_restored_release", restored, handle_kind::restored);
}
