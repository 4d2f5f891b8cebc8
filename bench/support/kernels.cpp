#include "bench/support/kernels.h"

#include <hostcuda/hostcuda.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::bench {
namespace {

constexpr const char *busy_name = "stillmap_busy", *fill_name = "stillmap_fill";

constexpr const char *ptx = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry stillmap_busy(.param .u64 p_at, .param .u64 p_flags, .param .u64 p_nanoseconds)
{
  .reg .pred %p<3>;
  .reg .u32 %r<4>;
  .reg .u64 %rd<8>;
  ld.param.u64 %rd1, [p_at];
  ld.param.u64 %rd2, [p_flags];
  ld.param.u64 %rd3, [p_nanoseconds];
  cvta.to.global.u64 %rd4, %rd1;
  cvta.to.global.u64 %rd5, %rd2;
  mov.u64 %rd6, %globaltimer;
  mov.u32 %r3, 1;
  st.volatile.global.u32 [%rd5+4], %r3;
  membar.sys;
  mov.u32 %r1, 0;
again:
  add.u32 %r1, %r1, 1;
  st.volatile.global.u32 [%rd4], %r1;
  ld.volatile.global.u32 %r2, [%rd5];
  setp.ne.u32 %p1, %r2, 0;
  @%p1 bra done;
  mov.u64 %rd7, %globaltimer;
  sub.u64 %rd7, %rd7, %rd6;
  setp.lt.u64 %p2, %rd7, %rd3;
  @%p2 bra again;
done:
  ret;
}

.visible .entry stillmap_fill(.param .u64 p_at, .param .u64 p_words, .param .u64 p_value)
{
  .reg .pred %p<2>;
  .reg .u32 %r<6>;
  .reg .u64 %rd<9>;
  ld.param.u64 %rd1, [p_at];
  ld.param.u64 %rd2, [p_words];
  ld.param.u64 %rd3, [p_value];
  cvta.to.global.u64 %rd4, %rd1;
  cvt.u32.u64 %r1, %rd3;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  cvt.u64.u32 %rd5, %r5;
  mov.u32 %r2, %nctaid.x;
  mul.lo.u32 %r3, %r2, %r3;
  cvt.u64.u32 %rd6, %r3;
next:
  setp.ge.u64 %p1, %rd5, %rd2;
  @%p1 bra done;
  shl.b64 %rd7, %rd5, 2;
  add.u64 %rd8, %rd4, %rd7;
  st.global.u32 [%rd8], %r1;
  add.u64 %rd5, %rd5, %rd6;
  bra next;
done:
  ret;
}
)";

std::atomic<decltype(&hostcuda_access)> access_on_host{nullptr};

std::uint64_t word(const hostcuda_launch *launch, int i) {
  return *static_cast<const std::uint64_t *>(launch->params[i]);
}

void busy_on_host(const hostcuda_launch *launch) {
  using clock = std::chrono::steady_clock;
  const auto until = clock::now() + std::chrono::nanoseconds(word(launch, 2));
  auto *const flags =
      reinterpret_cast<std::uint32_t *>(static_cast<std::uintptr_t>(word(launch, 1)));
  auto *const at = static_cast<std::uint32_t *>(
      access_on_host.load()(word(launch, 0), sizeof(std::uint32_t), 1));
  if (at == nullptr) return;
  __atomic_store_n(&flags[1], 1, __ATOMIC_RELEASE);
  for (std::uint32_t n = 1; __atomic_load_n(&flags[0], __ATOMIC_ACQUIRE) == 0; ++n) {
    if (clock::now() >= until) break;
    *at = n;
    // A device would not take the processor of the thread that is timed.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void fill_on_host(const hostcuda_launch *launch) {
  const std::uint64_t words = word(launch, 1);
  auto *const at =
      static_cast<std::uint32_t *>(access_on_host.load()(word(launch, 0), words * 4, 1));
  const auto value = static_cast<std::uint32_t>(word(launch, 2));
  for (std::uint64_t i = 0; at != nullptr && i < words; ++i) at[i] = value;
}

status register_with_hostcuda(const driver &drv) {
  const auto reach = reinterpret_cast<decltype(&hostcuda_access)>(drv.symbol("hostcuda_access"));
  const auto learn =
      reinterpret_cast<decltype(&hostcuda_register_kernel)>(drv.symbol("hostcuda_register_kernel"));
  if (reach == nullptr || learn == nullptr) return {};  // it runs PTX
  access_on_host = reach;
  const std::size_t sizes[] = {8, 8, 8};
  if (learn(busy_name, busy_on_host, 3, sizes) != CUDA_SUCCESS ||
      learn(fill_name, fill_on_host, 3, sizes) != CUDA_SUCCESS) {
    const operation_scope scope("hostcuda_register_kernel");
    return make_error(errc::not_supported, "it is refused");
  }
  return {};
}

}  // namespace

result<kernels> kernels::load(const driver &drv) {
  STILLMAP_RETURN_IF_ERROR(register_with_hostcuda(drv));
  kernels k(drv);
  STILLMAP_ASSIGN_OR_RETURN(void *const flags, drv.allocate_host(2 * sizeof(std::uint32_t)));
  k.flags_ = static_cast<std::uint32_t *>(flags);
  STILLMAP_ASSIGN_OR_RETURN(k.module_, drv.load_module(ptx));
  STILLMAP_ASSIGN_OR_RETURN(k.busy_, drv.module_function(k.module_, busy_name));
  STILLMAP_ASSIGN_OR_RETURN(k.fill_, drv.module_function(k.module_, fill_name));
  return k;
}

kernels::~kernels() {
  if (module_ != nullptr) {
    if (const status s = drv_->unload_module(module_); !s) report_background_error(s.error());
  }
  if (flags_ != nullptr) {
    if (const status s = drv_->free_host(flags_); !s) report_background_error(s.error());
  }
}

status kernels::start_busy(device_address to, unsigned milliseconds, stream_handle on) {
  __atomic_store_n(&flags_[0], 0, __ATOMIC_RELEASE);
  __atomic_store_n(&flags_[1], 0, __ATOMIC_RELEASE);
  std::uint64_t at = to.value(), where = reinterpret_cast<std::uintptr_t>(flags_),
                nanoseconds = std::uint64_t{milliseconds} * 1'000'000;
  void *params[] = {&at, &where, &nanoseconds};
  STILLMAP_RETURN_IF_ERROR(drv_->launch(busy_, 1, 1, params, on));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (__atomic_load_n(&flags_[1], __ATOMIC_ACQUIRE) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      (void)end_busy(on);  // its memory must not go before it
      const operation_scope scope("kernels::start_busy");
      return make_error(errc::busy, "it does not start to run");
    }
    (void)drv_->stream_idle(on);  // Windows's driver keeps launches back until asked
    std::this_thread::yield();
  }
  return {};
}

void kernels::stop_busy() noexcept {
  __atomic_store_n(&flags_[0], 1, __ATOMIC_RELEASE);
}

status kernels::end_busy(stream_handle on) {
  stop_busy();
  return drv_->synchronize_stream(on);
}

status kernels::fill(virtual_range range, std::uint32_t value, stream_handle on) const {
  std::uint64_t at = range.begin.value(), words = range.bytes / 4, v = value;
  void *params[] = {&at, &words, &v};
  return drv_->launch(fill_, 128, 256, params, on);
}

}  // namespace stillmap::bench
