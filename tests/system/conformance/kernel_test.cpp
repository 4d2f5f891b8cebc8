// Kernels on mapped and on unmapped addresses. The kernel is PTX that every driver since CUDA 9
// compiles, and a host function on hostcuda.
#include <array>

#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

constexpr const char *store_ptx = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry stillmap_store(.param .u64 stillmap_at, .param .u32 stillmap_value)
{
  .reg .u32 %r<2>;
  .reg .u64 %rd<3>;
  ld.param.u64 %rd1, [stillmap_at];
  ld.param.u32 %r1, [stillmap_value];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], %r1;
  ret;
}
)";

void store_on_host(const hostcuda_launch *launch) {
  const auto at = *static_cast<const CUdeviceptr *>(launch->params[0]);
  const auto value = *static_cast<const std::uint32_t *>(launch->params[1]);
  void *target = cu().hostcuda_access(at, sizeof value, 1);
  if (target != nullptr) *static_cast<std::uint32_t *>(target) = value;
}

class kernel : public driver_test {
 protected:
  void SetUp() override {
    driver_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (cu().hostcuda_register_kernel != nullptr) {
      const std::array<std::size_t, 2> sizes{sizeof(CUdeviceptr), sizeof(std::uint32_t)};
      MUST(cu().hostcuda_register_kernel("stillmap_store", store_on_host, 2, sizes.data()));
    }
    MUST(cu().ModuleLoadData(&module_, store_ptx));
    MUST(cu().ModuleGetFunction(&store_, module_, "stillmap_store"));
  }

  void TearDown() override {
    if (module_ != nullptr && !broken_) {
      EXPECT_EQ(cu().ModuleUnload(module_), CUDA_SUCCESS);
    }
    driver_test::TearDown();
  }

  CUresult store(CUdeviceptr at, std::uint32_t value) {
    std::array<void *, 2> params{&at, &value};
    return cu().LaunchKernel(store_, 1, 1, 1, 1, 1, 1, 0, nullptr, params.data(), nullptr);
  }

  // Launches on an address where it must fail, and asks three calls afterwards.
  void expect_sticky_fault(const std::string &label, CUdeviceptr at) {
    broken_ = true;
    expect_broken_context();
    record(63, label + ": the launch returned " + name_of(store(at, 63)));
    expect_code(63, label + ": cuCtxSynchronize", cu().CtxSynchronize(),
                {CUDA_ERROR_ILLEGAL_ADDRESS});
    CUdeviceptr memory = 0;
    expect_code(63, label + ": cuMemAlloc after it", cu().MemAlloc(&memory, 4096),
                {CUDA_ERROR_ILLEGAL_ADDRESS});
    expect_code(63, label + ": cuCtxSynchronize again", cu().CtxSynchronize(),
                {CUDA_ERROR_ILLEGAL_ADDRESS});
  }

 private:
  CUmodule module_ = nullptr;
  CUfunction store_ = nullptr;
  bool broken_ = false;
};

TEST_F(kernel, stores_at_a_mapped_address) {
  if (!has_vmm()) SKIP_BECAUSE("device 0 has no virtual memory management (attribute 102 is 0)");
  reserved range(4 * mib);
  physical memory(2 * mib);
  mapped there(range.at + 2 * mib, memory);
  MUST(grant(there.at, there.bytes));
  MUST(cu().MemsetD32(there.at, 0, 1024));
  MUST(store(there.at + 4000, 0xfeedbeef));
  MUST(cu().CtxSynchronize());
  std::array<std::uint32_t, 1024> seen{};
  MUST(cu().MemcpyDtoH(seen.data(), there.at, sizeof seen));
  EXPECT_EQ(seen[999], 0u);
  EXPECT_EQ(seen[1000], 0xfeedbeefu);
  EXPECT_EQ(seen[1001], 0u);
}

TEST_F(kernel, a63_unmapped_address_breaks_the_context_for_good) {
  IN_A_PROCESS_OF_ITS_OWN();
  CUdeviceptr at = 4096;  // no driver maps the first pages
  if (has_vmm()) MUST(cu().MemAddressReserve(&at, 2 * mib, 0, 0, 0));
  expect_sticky_fault(has_vmm() ? "reserved, unmapped" : "address 4096", at);
}

TEST_F(kernel, a63_mapped_address_without_access_does_so_too) {
  IN_A_PROCESS_OF_ITS_OWN();
  if (!has_vmm()) SKIP_BECAUSE("device 0 has no virtual memory management (attribute 102 is 0)");
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp p = properties();
  MUST(cu().MemAddressReserve(&at, 2 * mib, 0, 0, 0));
  MUST(cu().MemCreate(&handle, 2 * mib, &p, 0));
  MUST(cu().MemMap(at, 2 * mib, 0, handle, 0));
  expect_sticky_fault("mapped, no access", at);
}

}  // namespace
}  // namespace stillmap::conformance
