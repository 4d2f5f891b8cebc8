#include <atomic>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/parallel_for.h"
#include "stillmap/checkpoint/image/internal/open_image.h"
#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {

// Verifies the stored chunks of a chain with several threads.
class image_check {
 public:
  image_check(const reader &r, const verify_options &options) : options_(options) {
    for (const open_image *image = r.image_.get(); image != nullptr; image = image->parent.get()) {
      for (std::size_t i = 0; i < image->table.size(); ++i) {
        const chunk_record &c = image->table[i];
        if (!c.is_stored()) continue;
        chunks_.push_back({image, i});
        progress_.total_bytes += c.stored;
      }
      if (!options.parents) break;
    }
    progress_.total_chunks = chunks_.size();
  }

  status run() {
    checkpoint::parallel_for(checkpoint::threads_for(options_.threads, chunks_.size()),
                             [this]() noexcept {
                               if (status ok = with_host_memory([this] { return work(); }); !ok) {
                                 end(std::move(ok));
                               }
                             });
    const lock_guard lock(mutex_);
    return result_;
  }

 private:
  status work() {
    checkpoint::aligned_memory room;
    chunk_scratch scratch;
    for (;;) {
      const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= chunks_.size() || stop_.load(std::memory_order_relaxed)) return {};
      const auto [image, n] = chunks_[i];
      const chunk_record &c = image->table[n];
      STILLMAP_RETURN_IF_ERROR(room.grow(c.bytes));
      STILLMAP_RETURN_IF_ERROR(image->load(n, room.bytes().first(c.bytes), scratch, true));
      report(c);
      if (options_.cancel.stop_requested()) {
        return make_error(errc::operation_canceled, "stop requested");
      }
    }
  }

  void report(const chunk_record &c) {
    const lock_guard lock(mutex_);
    ++progress_.chunks;
    progress_.bytes += c.stored;
    if (options_.on_progress) options_.on_progress(progress_);
  }

  void end(status result) {
    const lock_guard lock(mutex_);
    stop_ = true;
    if (result_) result_ = std::move(result);
  }

  struct chunk {
    const open_image *image;
    std::size_t number;
  };
  const verify_options &options_;
  std::vector<chunk> chunks_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> stop_{false};
  mutex mutex_;
  verify_progress progress_ STILLMAP_GUARDED_BY(mutex_);
  status result_ STILLMAP_GUARDED_BY(mutex_);
};

status reader::verify(const verify_options &options) const {
  return checkpoint::in_file(
      with_host_memory("image::verify", [&] { return image_check(*this, options).run(); }), path());
}

}  // namespace stillmap::image
