#include <atomic>
#include <cerrno>
#include <new>

#include "stillmap/checkpoint/image/internal/parallel_for.h"
#include "stillmap/checkpoint/image/internal/reader_internal.h"

namespace stillmap::image {

// One verification: the chunks of a chain that are stored, shared out among threads.
class image_check {
 public:
  image_check(const reader &r, const verify_options &how) : how_(how) {
    for (const reader::core *image = r.core_.get(); image != nullptr; image = image->parent.get()) {
      for (std::size_t i = 0; i < image->table.size(); ++i) {
        const chunk_record &c = image->table[i];
        if (!c.is_stored()) continue;
        chunks_.push_back({image, i});
        progress_.of_bytes += c.stored;
      }
      if (!how.parents) break;
    }
    progress_.of_chunks = chunks_.size();
  }

  done run() {
    parallel_for(threads_for(how_.threads, chunks_.size()), [this] {
      try {
        work();
      } catch (const std::bad_alloc &) {
        end(fail(errc::out_of_memory, "image::verify", "no memory to verify"));
      }
    });
    return result_;
  }

 private:
  void work() {
    aligned_memory room;
    chunk_scratch scratch;
    for (;;) {
      const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= chunks_.size() || stop_.load(std::memory_order_relaxed)) return;
      const auto [image, n] = chunks_[i];
      const chunk_record &c = image->table[n];
      if (room.bytes().size() < c.bytes) {
        auto more = aligned_memory::create(c.bytes);
        if (!more) return end(tl::unexpected<failure>(more.error()));
        room = std::move(*more);
      }
      auto ok = image->load(n, room.bytes().first(c.bytes), scratch, true);
      if (!ok) return end(std::move(ok));
      if (!report(c)) {
        return end(fail_system(ECANCELED, "image::verify", "given up, as was asked"));
      }
    }
  }

  bool report(const chunk_record &c) {
    const std::lock_guard lock(mutex_);
    ++progress_.chunks;
    progress_.bytes += c.stored;
    return !how_.on_progress || how_.on_progress(progress_);
  }

  void end(done why) {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (result_) result_ = std::move(why);
  }

  struct chunk {
    const reader::core *image;
    std::size_t number;
  };
  const verify_options &how_;
  std::vector<chunk> chunks_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  verify_progress progress_;
  done result_;
};

done reader::verify(const verify_options &options) const {
  try {
    return in_file(image_check(*this, options).run(), core_->path);
  } catch (const std::bad_alloc &) {
    return in_file<void>(fail(errc::out_of_memory, "image::verify", "no memory to verify"),
                         core_->path);
  }
}

}  // namespace stillmap::image
