#include "stillmap/checkpoint/snapshot/chunk_digests.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/snapshot/internal/chunk_digests_ptx.h"
#include "stillmap/checkpoint/snapshot/internal/host_kernel.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/growable_buffer.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::snapshot {
namespace {

constexpr unsigned block_threads = 256;   // as compiled into the kernel
constexpr std::size_t kernel_align = 16;  // of what a thread loads at once
constexpr unsigned max_blocks = 256;      // of a launch: several for each multiprocessor

}  // namespace

class digest_module {
 public:
  static result<digest_module> load(const driver &drv) {
    if (!drv.has(driver_call::ModuleLoadData) || !drv.has(driver_call::LaunchKernel)) {
      return make_error(errc::not_supported, "the driver loads no modules");
    }
    register_host_kernel(drv);
    STILLMAP_ASSIGN_OR_RETURN(auto module, drv.load_module(chunk_digests_ptx));
    digest_module out(drv, module);
    STILLMAP_ASSIGN_OR_RETURN(out.kernel_, drv.module_function(module, kernel_name));
    return out;
  }
  digest_module(digest_module &&o) noexcept
      : drv_(o.drv_), module_(std::exchange(o.module_, nullptr)), kernel_(o.kernel_) {}
  digest_module &operator=(digest_module &&) = delete;
  ~digest_module() {
    if (module_ == nullptr) return;
    if (const status s = drv_.unload_module(module_); !s) report_background_error(s.error());
  }
  function_handle kernel() const { return kernel_; }

 private:
  digest_module(const driver &drv, module_handle m) : drv_(drv), module_(m) {}
  const driver &drv_;
  module_handle module_;
  function_handle kernel_ = nullptr;
};

namespace {

struct kernel_chunk {
  std::uint64_t address, bytes;
};

// The chunks of one stream.
struct share {
  std::size_t first = 0, count = 0;
  unsigned blocks = 0;
};

}  // namespace

class chunk_digester::core {
 public:
  static result<std::unique_ptr<core>> create(const device &d, const image::digest_key &key) {
    const context_guard guard(d.driver(), d.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    STILLMAP_ASSIGN_OR_RETURN(auto module, digest_module::load(d.driver()));
    std::unique_ptr<core> out(new core(d, key, std::move(module)));
    const std::size_t most = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
    for (std::size_t i = 0; i < most; ++i) {
      STILLMAP_ASSIGN_OR_RETURN(auto s, stream::create(d));
      out->streams_.push_back(std::move(s));
    }
    return out;
  }
  ~core() {
    const context_guard guard(device_.driver(), device_.context());
    // run() waits for everything that it launches.
    if (room_) {
      report_if_failed(with_host_memory([&] { return room_->close({}); }));
    }
    module_.reset();
  }

  result<std::vector<image::digest>> run(std::span<const virtual_range> chunks) {
    const context_guard guard(device_.driver(), device_.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    for (const virtual_range c : chunks) {
      if (c.bytes == 0 || c.bytes % image::block_bytes != 0) {
        return make_error(errc::not_supported, "the chunk is not a multiple of 4096 bytes", c.bytes,
                          image::block_bytes, error_unit::bytes);
      }
      if (c.begin.value() % kernel_align != 0) {
        return make_error(errc::not_supported, "the chunk's address is not a multiple of 16",
                          c.begin.value());
      }
    }
    const std::vector<share> shares = plan_shares(chunks.size());
    const std::size_t list_bytes = chunks.size() * sizeof(kernel_chunk);
    const std::size_t digest_bytes = chunks.size() * sizeof(image::digest);
    STILLMAP_RETURN_IF_ERROR(ensure_room(list_bytes + digest_bytes));
    std::vector<kernel_chunk> list;
    for (const virtual_range c : chunks) list.push_back({c.begin.value(), c.bytes});
    std::vector<image::digest> out(chunks.size());
    // Not on the legacy default stream, which would wait for other work.
    const stream &first = streams_.front();
    const device_address at = room_->address();
    status s = device_.driver().copy_to_device_async(at, list.data(), list_bytes, first.get());
    wait_for(first, s);
    const device_address digests = at + list_bytes;
    std::size_t launched = 0;
    for (; s && launched < shares.size(); ++launched) {
      s = launch(shares[launched], at, digests, streams_[launched]);
    }
    // Wait for all launches, also after a failure: the memory is used again, and the caller may
    // change the chunks.
    for (std::size_t i = 0; i < launched; ++i) wait_for(streams_[i], s);
    if (s) {
      s = device_.driver().copy_to_host_async(out.data(), digests, digest_bytes, first.get());
      wait_for(first, s);
    }
    STILLMAP_RETURN_IF_ERROR(s);
    return out;
  }

 private:
  core(const device &d, const image::digest_key &key, digest_module m)
      : device_(d), module_(std::move(m)) {
    std::memcpy(key_.data(), key.bytes.data(), sizeof key_);
  }

  std::vector<share> plan_shares(std::size_t chunks) const {
    std::vector<share> out;
    const std::size_t n = std::min(streams_.size(), chunks);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t first = chunks * i / n, end = chunks * (i + 1) / n;
      out.push_back({first, end - first,
                     static_cast<unsigned>(std::min<std::size_t>(end - first, max_blocks))});
    }
    return out;
  }

  // Waits for a stream; if that fails, for the context. `s` keeps the first failure.
  void wait_for(const stream &stream, status &s) const {
    const status done = stream.synchronize();
    if (done) return;
    if (s) s = done;
    (void)device_.driver().synchronize_context();  // the stream's failure is returned
  }

  // Device memory for the parameters and results of kernels. Not from cuMemAlloc, because
  // cuMemFree waits for the whole device.
  status ensure_room(std::size_t bytes) {
    if (!room_) {
      buffer_options options;
      if (device_.capabilities().vmm) {
        page_pool_options of;
        of.keep_free = 0;
        STILLMAP_ASSIGN_OR_RETURN(options.pools.emplace_back(), page_pool::create(device_, of));
      }
      STILLMAP_ASSIGN_OR_RETURN(auto made, growable_buffer::create(device_, options));
      room_.emplace(std::move(made));
    }
    return room_->size() >= bytes ? status() : room_->resize(bytes);
  }

  status launch(const share &part, device_address list, device_address digests, stream_ref on) {
    std::uint64_t chunks = (list + part.first * sizeof(kernel_chunk)).value(), count = part.count,
                  to = (digests + part.first * sizeof(image::digest)).value();
    void *params[] = {&chunks, &count, &to, &key_[0], &key_[1], &key_[2], &key_[3]};
    return device_.driver().launch(module_->kernel(), part.blocks, block_threads, params, on.get());
  }

  const device device_;
  std::array<std::uint64_t, 4> key_;  // little-endian, as the kernel takes it
  std::optional<digest_module> module_;
  std::vector<stream> streams_;
  std::optional<growable_buffer> room_;
};

chunk_digester::chunk_digester(std::unique_ptr<core> c) : core_(std::move(c)) {}
chunk_digester::chunk_digester(chunk_digester &&) noexcept = default;
chunk_digester &chunk_digester::operator=(chunk_digester &&) noexcept = default;
chunk_digester::~chunk_digester() = default;

result<chunk_digester> chunk_digester::create(const device &d, const image::digest_key &key) {
  return with_host_memory("chunk_digester::create", [&]() -> result<chunk_digester> {
    STILLMAP_ASSIGN_OR_RETURN(auto made, core::create(d, key));
    return chunk_digester(std::move(made));
  });
}

result<std::vector<image::digest>> chunk_digester::digests_of(
    std::span<const virtual_range> chunks) {
  if (chunks.empty()) return std::vector<image::digest>();
  return with_host_memory("chunk_digester::digests_of", [&] { return core_->run(chunks); });
}

}  // namespace stillmap::snapshot
