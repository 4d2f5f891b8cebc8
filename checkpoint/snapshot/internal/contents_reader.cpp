#include "stillmap/checkpoint/snapshot/internal/contents_reader.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "stillmap/checkpoint/common/internal/batch_copier.h"
#include "stillmap/checkpoint/common/internal/host_memory.h"
#include "stillmap/checkpoint/image/internal/parallel_for.h"
#include "stillmap/checkpoint/snapshot/internal/failures.h"
#include "stillmap/vmm/context.h"

namespace stillmap::snapshot {
namespace {

struct copy_step {
  std::size_t chunk;  // of the image
  device_address to;
};

// Chunks of the pages that are wanted, in the order in which they lie in the file.
std::vector<copy_step> steps_of(const image::reader &from, const wanted_memory &what,
                                const std::vector<device_address> &at) {
  std::vector<copy_step> steps;
  const auto chunks = from.chunks();
  for (std::size_t page = 0; page < at.size(); ++page) {
    const std::uint64_t begin = what.offsets[page], end = begin + what.layout.pages[page].bytes;
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

class filling {
 public:
  filling(const device &d, const image::reader &from, const restore_options &how,
          std::vector<copy_step> steps)
      : device_(d), from_(from), how_(how), steps_(std::move(steps)) {
    for (const copy_step &s : steps_) told_.of_bytes += from_.chunks()[s.chunk].bytes;
  }

  image::done run() {
    const unsigned threads = image::threads_for(static_cast<unsigned>(how_.threads), steps_.size());
    auto by = checkpoint::transfer::create(device_, threads);
    if (!by) return pass_on(by.error());
    by_.emplace(std::move(*by));
    const std::size_t room = from_.head().chunk_bytes;
    auto buffers = checkpoint::host_memory::create(device_, threads * room);
    if (!buffers) return pass_on(buffers.error());
    std::atomic<std::size_t> lanes{0};
    image::parallel_for(threads, [&] {
      const std::size_t lane = lanes++;
      work(lane, {buffers->data() + lane * room, room});
    });
    return outcome_;
  }

 private:
  void work(std::size_t lane, std::span<std::byte> buffer) {
    for (std::size_t i = next_++; i < steps_.size() && !stop_; i = next_++) {
      const image::chunk_record &c = from_.chunks()[steps_[i].chunk];
      const image::done one = c.kind == image::chunk_kind::zero
                                  ? clear(steps_[i].to, c.bytes, lane)
                                  : copy(steps_[i], buffer.first(c.bytes), lane);
      const std::lock_guard lock(mutex_);
      if (!one) {
        fail(one.error());
      } else if (!tell(c.bytes)) {
        fail(image::fail_system(ECANCELED, "snapshot::restore", "it was given up").value());
      }
    }
  }

  image::done copy(const copy_step &step, std::span<std::byte> buffer, std::size_t lane) {
    if (auto read = from_.read_chunk(step.chunk, buffer); !read) return read;
    status s =
        by_->start(checkpoint::direction::to_device, {step.to, buffer.size()}, buffer.data(), lane);
    if (status done = by_->wait(lane); s) s = done;
    if (!s) return pass_on(s.error());
    return {};
  }

  image::done clear(device_address at, std::size_t bytes, std::size_t lane) {
    status s = by_->clear({at, bytes}, lane);
    if (status done = by_->wait(lane); s) s = done;
    if (!s) return pass_on(s.error());
    return {};
  }

  // Require the mutex.
  void fail(const image::failure &why) {
    if (outcome_) outcome_ = tl::unexpected(why);
    stop_ = true;
  }
  bool tell(std::size_t bytes) {
    told_.bytes += bytes;
    return stop_ || !how_.on_progress || how_.on_progress(told_);
  }

  const device &device_;
  const image::reader &from_;
  const restore_options &how_;
  const std::vector<copy_step> steps_;
  std::optional<checkpoint::transfer> by_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  restore_progress told_;
  image::done outcome_;
};

}  // namespace

image::done fill(const device &d, const image::reader &from, const wanted_memory &what,
                 const std::vector<device_address> &at, const restore_options &how) {
  std::vector<copy_step> steps = steps_of(from, what, at);
  if (steps.empty()) return {};
  return filling(d, from, how, std::move(steps)).run();
}

}  // namespace stillmap::snapshot
