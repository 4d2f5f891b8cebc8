#include "tests/system/gpu/kernels.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "stillmap/vmm/base/cuda_errors.h"

namespace stillmap::testing {
namespace {

constexpr const char *ptx = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry stillmap_increment(.param .u64 p_at, .param .u64 p_count)
{
  .reg .pred %p<2>;
  .reg .u32 %r<9>;
  .reg .u64 %rd<7>;
  ld.param.u64 %rd1, [p_at];
  ld.param.u64 %rd2, [p_count];
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  ld.global.u32 %r1, [%rd4];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  mov.u32 %r6, %nctaid.x;
  mul.lo.u32 %r7, %r6, %r3;
next:
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra done;
  mul.wide.u32 %rd5, %r5, 4;
  add.u64 %rd6, %rd3, %rd5;
  ld.global.u32 %r8, [%rd6];
  add.u32 %r8, %r8, 1;
  st.global.u32 [%rd6], %r8;
  add.u32 %r5, %r5, %r7;
  bra next;
done:
  ret;
}

.visible .entry stillmap_store_through(.param .u64 p_pointer, .param .u32 p_value)
{
  .reg .u32 %r<2>;
  .reg .u64 %rd<5>;
  ld.param.u64 %rd1, [p_pointer];
  ld.param.u32 %r1, [p_value];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.u64 %rd3, [%rd2];
  cvta.to.global.u64 %rd4, %rd3;
  st.global.u32 [%rd4], %r1;
  ret;
}
)";

decltype(&hostcuda_access) access_on_host = nullptr;

template <class T>
T param(const hostcuda_launch *launch, int i) {
  return *static_cast<const T *>(launch->params[i]);
}

template <class T>
T *reach(CUdeviceptr at, std::size_t count, bool write) {
  return static_cast<T *>(access_on_host(at, count * sizeof(T), write ? 1 : 0));
}

void increment_on_host(const hostcuda_launch *launch) {
  const auto *count = reach<std::uint32_t>(param<CUdeviceptr>(launch, 1), 1, false);
  if (count == nullptr) return;
  auto *const words = reach<std::uint32_t>(param<CUdeviceptr>(launch, 0), *count, true);
  for (std::uint32_t i = 0; words != nullptr && i < *count; ++i) ++words[i];
}

void store_through_on_host(const hostcuda_launch *launch) {
  const auto *pointer = reach<CUdeviceptr>(param<CUdeviceptr>(launch, 0), 1, false);
  if (pointer == nullptr) return;
  auto *const word = reach<std::uint32_t>(*pointer, 1, true);
  if (word != nullptr) *word = param<std::uint32_t>(launch, 1);
}

}  // namespace

void check(CUresult r, const char *what) {
  if (r != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(what) + ": " + describe_cuda_error(r).name);
  }
}

#define CU(name, ...) check(raw<decltype(name)>(cu(), #name)(__VA_ARGS__), #name)

void gpu_test::SetUp() {
  buffer_test::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  STILLMAP_NEEDS_VMM();
  enter();
  if (runs_on_host()) {
    access_on_host = raw<decltype(hostcuda_access)>(cu(), "hostcuda_access");
    const std::size_t words[] = {8, 8}, store[] = {8, 4};
    CU(hostcuda_register_kernel, "stillmap_increment", increment_on_host, 2, words);
    CU(hostcuda_register_kernel, "stillmap_store_through", store_through_on_host, 2, store);
  }
  auto counting = bench::kernels::load(cu());
  ASSERT_TRUE(counting) << counting.error().message();
  counting_.emplace(std::move(*counting));
  CU(cuModuleLoadData, &module_, ptx);
  CU(cuModuleGetFunction, &increment_, module_, "stillmap_increment");
  CU(cuModuleGetFunction, &store_through_, module_, "stillmap_store_through");
}

void gpu_test::TearDown() {
  if (inside_) {
    counting_.reset();
    if (module_ != nullptr) {
      EXPECT_EQ(raw<decltype(cuModuleUnload)>(cu(), "cuModuleUnload")(module_), CUDA_SUCCESS);
    }
    inside_.reset();
  }
  buffer_test::TearDown();
}

void gpu_test::enter() {
  inside_.emplace(cu(), dev().context());
  if (!inside_->entered()) throw std::runtime_error(inside_->entered().error().message());
}

void gpu_test::launch(CUfunction f, stream_ref s, void **params, unsigned blocks,
                      unsigned threads) {
  CU(cuLaunchKernel, f, blocks, 1, 1, threads, 1, 1, 0, s.get(), params, nullptr);
}

void gpu_test::start_counting(device_address at, unsigned seconds, stream_ref s) {
  if (const status begun = counting_->start_busy(at, seconds * 1000, s.get()); !begun) {
    throw std::runtime_error(begun.error().message());
  }
  const stream aside = make_stream();  // a plain copy would wait for the kernel
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (std::uint32_t n = 0; n < 2;) {
    if (!cu().copy_to_host_async(&n, at, sizeof n, aside.get()) || !aside.synchronize()) {
      throw std::runtime_error("what it counts cannot be read");
    }
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("it does not count");
    std::this_thread::yield();
  }
}

void gpu_test::stop_counting() {
  counting_->stop_busy();
}

void gpu_test::launch_increment(device_address at, device_address count, stream_ref s) {
  std::uint64_t where = at.value(), how_many = count.value();
  void *params[] = {&where, &how_many};
  // A host kernel is one thread that does all of it.
  launch(increment_, s, params, runs_on_host() ? 1 : 64, runs_on_host() ? 1 : 128);
}

void gpu_test::launch_store_through(device_address pointer, std::uint32_t value, stream_ref s) {
  std::uint64_t where = pointer.value();
  void *params[] = {&where, &value};
  launch(store_through_, s, params, 1, 1);
}

growable_buffer gpu_test::zeros(std::size_t pages, buffer_options options) const {
  growable_buffer b = make(std::move(options));
  if (!b.resize(pages * page()) || !cu().set_bytes_async(b.address(), 0, b.size(), nullptr) ||
      !cu().synchronize_stream(nullptr)) {
    throw std::runtime_error("no buffer of zeros");
  }
  return b;
}

void gpu_test::write(device_address at, std::uint32_t value) const {
  const status s = cu().copy_to_device(at, &value, sizeof value);
  if (!s) throw std::runtime_error(s.error().message());
}

std::uint32_t gpu_test::read(device_address at) const {
  std::uint32_t value = 0;
  const status s = cu().copy_to_host(&value, at, sizeof value);
  if (!s) throw std::runtime_error(s.error().message());
  return value;
}

}  // namespace stillmap::testing
