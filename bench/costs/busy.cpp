#include "bench/costs/busy.h"

#include <hostcuda/hostcuda.h>

#include <chrono>
#include <thread>

namespace stillmap::costs {
namespace {

constexpr const char *name = "stillmap_busy";

// For every driver since CUDA 9: PTX 6.0.
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
)";

decltype(&hostcuda_access) access_on_host = nullptr;

void busy_on_host(const hostcuda_launch *launch) {
  using clock = std::chrono::steady_clock;
  const auto word = [&](int i) { return *static_cast<const std::uint64_t *>(launch->params[i]); };
  const auto until = clock::now() + std::chrono::nanoseconds(word(2));
  auto *const flags = reinterpret_cast<std::uint32_t *>(static_cast<std::uintptr_t>(word(1)));
  auto *const at = static_cast<std::uint32_t *>(access_on_host(word(0), sizeof(std::uint32_t), 1));
  if (at == nullptr) return;
  __atomic_store_n(&flags[1], 1, __ATOMIC_RELEASE);
  while (__atomic_load_n(&flags[0], __ATOMIC_ACQUIRE) == 0 && clock::now() < until) {
    ++*at;
    // A device would not take the processor of the thread that is timed.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

status teach_hostcuda(const driver &drv) {
  access_on_host = reinterpret_cast<decltype(&hostcuda_access)>(drv.symbol("hostcuda_access"));
  auto *const learn =
      reinterpret_cast<decltype(&hostcuda_register_kernel)>(drv.symbol("hostcuda_register_kernel"));
  const std::size_t sizes[] = {8, 8, 8};
  if (access_on_host == nullptr || learn == nullptr ||
      learn(name, busy_on_host, 3, sizes) != CUDA_SUCCESS) {
    return refuse(condition::not_supported, "hostcuda_register_kernel", "it is refused");
  }
  return {};
}

}  // namespace

result<busy_kernel> busy_kernel::load(const machine &m) {
  const driver &drv = m.drv();
  busy_kernel k;
  k.driver_ = &drv;
  if (drv.is_hostcuda()) {
    if (const status s = teach_hostcuda(drv); !s) return failed(s);
  }
  if (auto mapped = make_piece(m, m.page())) {
    k.mapped_ = std::move(*mapped);
  } else {
    const auto plain = drv.allocate(m.page());
    if (!plain) return failed(plain);
    k.plain_ = plain_memory(drv, *plain);
  }
  const auto flags = drv.allocate_host(2 * sizeof(std::uint32_t));
  if (!flags) return failed(flags);
  k.flags_ = pinned_memory(drv, *flags);
  const auto module = drv.load_module(ptx);
  if (!module) return failed(module);
  k.module_ = own_module(drv, *module);
  const auto function = drv.module_function(*module, name);
  if (!function) return failed(function);
  k.function_ = *function;
  return k;
}

status busy_kernel::start(stream_handle stream, unsigned milliseconds) {
  __atomic_store_n(&flags()[0], 0, __ATOMIC_RELEASE);
  __atomic_store_n(&flags()[1], 0, __ATOMIC_RELEASE);
  std::uint64_t at = (mapped_.there ? mapped_.begin() : plain_.get()).value(),
                where = reinterpret_cast<std::uintptr_t>(flags()),
                nanoseconds = std::uint64_t{milliseconds} * 1000000;
  void *params[] = {&at, &where, &nanoseconds};
  if (const status s = driver_->launch(function_, 1, 1, params, stream); !s) return s;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (__atomic_load_n(&flags()[1], __ATOMIC_ACQUIRE) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      (void)end(stream);  // its memory must not go before it
      return refuse(condition::busy, "busy_kernel::start", "it does not start to run");
    }
    (void)driver_->stream_idle(stream);  // Windows's driver keeps launches back until asked
    std::this_thread::yield();
  }
  return {};
}

status busy_kernel::end(stream_handle stream) {
  __atomic_store_n(&flags()[0], 1, __ATOMIC_RELEASE);
  return driver_->synchronize_stream(stream);
}

}  // namespace stillmap::costs
