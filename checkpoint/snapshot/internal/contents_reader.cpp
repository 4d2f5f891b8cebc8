#include "stillmap/checkpoint/snapshot/internal/contents_reader.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "stillmap/checkpoint/base/parallel_for.h"
#include "stillmap/checkpoint/common/batch_copier.h"
#include "stillmap/checkpoint/common/host_memory.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::snapshot {
namespace {

struct copy_step {
  std::size_t chunk;  // of the image
  device_address to;
};

// The chunks of the selected pages, in the order of the contents.
std::vector<copy_step> steps_of(const image::reader &from, const selected_memory &wanted,
                                const std::vector<device_address> &at) {
  std::vector<copy_step> steps;
  const auto chunks = from.chunks();
  for (std::size_t page = 0; page < at.size(); ++page) {
    const std::uint64_t begin = wanted.offsets[page], end = begin + wanted.layout.pages[page].bytes;
    auto c = std::lower_bound(
        chunks.begin(), chunks.end(), begin,
        [](const image::chunk_record &x, std::uint64_t offset) { return x.at < offset; });
    for (; c != chunks.end() && c->at < end; ++c) {
      steps.push_back({static_cast<std::size_t>(c - chunks.begin()),
                       at[page] + static_cast<std::size_t>(c->at - begin)});
    }
  }
  return steps;
}

class contents_reader {
 public:
  contents_reader(const device &d, const image::reader &from, const restore_options &options,
                  std::vector<copy_step> steps, std::atomic<bool> *writes)
      : device_(d), from_(from), options_(options), steps_(std::move(steps)), writes_(writes) {
    for (const copy_step &s : steps_) progress_.total_bytes += from_.chunks()[s.chunk].bytes;
  }

  status run() {
    const unsigned threads =
        checkpoint::threads_for(static_cast<unsigned>(options_.threads), steps_.size());
    STILLMAP_ASSIGN_OR_RETURN(copier_, checkpoint::batch_copier::create(device_, threads));
    const std::size_t room = from_.superblock().chunk_bytes;
    STILLMAP_ASSIGN_OR_RETURN(const auto buffers,
                              checkpoint::host_memory::create(device_, threads * room));
    std::atomic<std::size_t> streams{0};
    checkpoint::parallel_for(threads, [&]() noexcept {
      const std::size_t stream = streams++;
      work(stream, {buffers.data() + stream * room, room});
    });
    const lock_guard lock(mutex_);
    return outcome_;
  }

 private:
  void work(std::size_t stream, std::span<std::byte> buffer) noexcept {
    for (std::size_t i = next_++; i < steps_.size() && !stop_; i = next_++) {
      const image::chunk_record &c = from_.chunks()[steps_[i].chunk];
      status ok = with_host_memory([&] {
        return c.kind == image::chunk_kind::zero ? clear(steps_[i].to, c.bytes, stream)
                                                 : copy(steps_[i], buffer.first(c.bytes), stream);
      });
      if (ok && options_.cancel.stop_requested()) {
        ok = make_error(errc::operation_canceled, "stop requested");
      }
      const lock_guard lock(mutex_);
      if (!ok) {
        if (outcome_) outcome_ = ok;
        stop_ = true;
      } else if (!stop_) {
        progress_.bytes += c.bytes;
        if (options_.on_progress) options_.on_progress(progress_);
      }
    }
  }

  status copy(const copy_step &step, std::span<std::byte> buffer, std::size_t stream) {
    STILLMAP_RETURN_IF_ERROR(from_.read_chunk(step.chunk, buffer));
    note_writing();
    const status s = copier_->start(checkpoint::direction::to_device, {step.to, buffer.size()},
                                    buffer.data(), stream);
    const status waited = copier_->wait(stream);
    return s ? waited : s;
  }

  status clear(device_address at, std::size_t bytes, std::size_t stream) {
    note_writing();
    const status s = copier_->clear({at, bytes}, stream);
    const status waited = copier_->wait(stream);
    return s ? waited : s;
  }

  void note_writing() noexcept {
    if (writes_ != nullptr) writes_->store(true, std::memory_order_relaxed);
  }

  const device &device_;
  const image::reader &from_;
  const restore_options &options_;
  const std::vector<copy_step> steps_;
  std::atomic<bool> *const writes_;
  std::optional<checkpoint::batch_copier> copier_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> stop_{false};
  mutex mutex_;
  restore_progress progress_ STILLMAP_GUARDED_BY(mutex_);
  status outcome_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace

status read_contents(const device &d, const image::reader &from, const selected_memory &wanted,
                     const std::vector<device_address> &at, const restore_options &options,
                     std::atomic<bool> *writes) {
  std::vector<copy_step> steps = steps_of(from, wanted, at);
  if (steps.empty()) return {};
  return contents_reader(d, from, options, std::move(steps), writes).run();
}

}  // namespace stillmap::snapshot
