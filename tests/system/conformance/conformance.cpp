#include "tests/system/conformance/conformance.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <thread>

namespace stillmap::conformance {
namespace {

// Other processes may come and go on a real device; so much of a change is not held against a test.
constexpr std::size_t tolerated_drift = 64 * mib;

bool variable_is_set(const char *name) {
  const char *value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

// cuInit and the primary context of device 0, held until the process ends.
struct opened_device {
  CUresult code = CUDA_SUCCESS;
  const char *step = "";
  CUcontext context = nullptr;
};

const opened_device &device_zero() {
  static const opened_device opened = [] {
    opened_device o;
    CUdevice device = 0;
    o.step = "cuInit";
    if ((o.code = cu().Init(0)) != CUDA_SUCCESS) return o;
    o.step = "cuDeviceGet";
    if ((o.code = cu().DeviceGet(&device, 0)) != CUDA_SUCCESS) return o;
    o.step = "cuDevicePrimaryCtxRetain";
    o.code = cu().DevicePrimaryCtxRetain(&o.context, device);
    return o;
  }();
  return opened;
}

}  // namespace

std::string name_of(CUresult code) {
  const char *name = nullptr;
  if (cu().GetErrorName != nullptr) cu().GetErrorName(code, &name);
  return std::to_string(static_cast<int>(code)) + " (" +
         (code == CUDA_SUCCESS ? "CUDA_SUCCESS"
          : name == nullptr    ? "?"
                               : name) +
         ")";
}

void record(int number, const std::string &text) {
  // One property a number: a test that records twice keeps both, one after the other.
  static const ::testing::TestInfo *current = nullptr;
  static std::map<int, std::string> kept;
  const ::testing::TestInfo *now = ::testing::UnitTest::GetInstance()->current_test_info();
  if (now != current) {
    kept.clear();
    current = now;
  }
  std::string &all = kept[number];
  all += (all.empty() ? "" : "; ") + text;
  std::printf("[ RECORD   ] %d: %s\n", number, text.c_str());
  std::fflush(stdout);
  char key[16];
  std::snprintf(key, sizeof key, "a%02d", number);
  ::testing::Test::RecordProperty(key, all);
}

void expect_code(int number, const std::string &label, CUresult got,
                 std::initializer_list<CUresult> wanted) {
  record(number, label + " returned " + name_of(got));
  std::string expected;
  for (CUresult w : wanted) {
    if (w == got) return;
    expected += (expected.empty() ? "" : " or ") + name_of(w);
  }
  ADD_FAILURE() << number << ": " << label << " returned " << name_of(got) << ", expected "
                << expected;
}

void expect_error(int number, const std::string &label, CUresult got) {
  record(number, label + " returned " + name_of(got));
  EXPECT_NE(got, CUDA_SUCCESS) << number << ": " << label << " must not succeed";
}

void must(CUresult got, const char *what) {
  if (got != CUDA_SUCCESS)
    throw std::runtime_error(std::string(what) + " returned " + name_of(got));
}

bool hostcuda_is(const char *setting) {
  const char *config = nullptr;
  return cu().hostcuda_config != nullptr && cu().hostcuda_config(&config) == CUDA_SUCCESS &&
         (std::string(",") + config + ",").find(std::string(",") + setting) != std::string::npos;
}

bool driver_is_required() {
  const char *chosen = std::getenv("STILLMAP_DRIVER");
  return variable_is_set("STILLMAP_REQUIRE_GPU") ||
         (chosen != nullptr && *chosen != '\0' && std::strcmp(chosen, "cuda") != 0);
}

void print_skip(const std::string &reason) {
  ::testing::Test::RecordProperty("skip_reason", reason);  // gtest's JSON report has no other place
  std::printf("[ SKIP     ] %s\n", reason.c_str());
  std::fflush(stdout);
}

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> out(bytes);
  std::uint64_t state = 0x9e3779b97f4a7c15ull * (seed + 1);
  for (std::size_t i = 0; i < bytes; i += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(out.data() + i, &state, std::min(sizeof state, bytes - i));
  }
  return out;
}

void write_pattern(CUdeviceptr at, std::size_t bytes, unsigned seed) {
  const auto data = pattern(bytes, seed);
  MUST(cu().MemcpyHtoD(at, data.data(), bytes));
}

::testing::AssertionResult holds_pattern(CUdeviceptr at, std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> seen(bytes);
  if (CUresult r = cu().MemcpyDtoH(seen.data(), at, bytes); r != CUDA_SUCCESS)
    return ::testing::AssertionFailure() << "reading it back returned " << name_of(r);
  const auto wanted = pattern(bytes, seed);
  for (std::size_t i = 0; i < bytes; ++i)
    if (seen[i] != wanted[i])
      return ::testing::AssertionFailure() << "differs from byte " << i << " of " << bytes << " on";
  return ::testing::AssertionSuccess();
}

CUresult try_read(CUdeviceptr at) {
  unsigned char bytes[256];
  return cu().MemcpyDtoH(bytes, at, sizeof bytes);
}

CUresult try_write(CUdeviceptr at) {
  unsigned char bytes[256] = {1, 2, 3};
  return cu().MemcpyHtoD(at, bytes, sizeof bytes);
}

CUmemAllocationProp properties(int device, unsigned handle_types) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handle_types);
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  return p;
}

CUmemAccessDesc access_for(int device, CUmemAccess_flags flags) {
  CUmemAccessDesc d{};
  d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  d.location.id = device;
  d.flags = flags;
  return d;
}

CUresult grant(CUdeviceptr at, std::size_t bytes, CUmemAccess_flags flags, int device) {
  const CUmemAccessDesc d = access_for(device, flags);
  return cu().MemSetAccess(at, bytes, &d, 1);
}

reserved::reserved(std::size_t n, std::size_t alignment, CUdeviceptr hint) : bytes(n) {
  MUST(cu().MemAddressReserve(&at, n, alignment, hint, 0));
}
reserved::~reserved() {
  if (at != 0) {
    EXPECT_EQ(cu().MemAddressFree(at, bytes), CUDA_SUCCESS);
  }
}

physical::physical(std::size_t n, unsigned handle_types, int device) : bytes(n) {
  const CUmemAllocationProp p = properties(device, handle_types);
  MUST(cu().MemCreate(&handle, n, &p, 0));
}
physical::~physical() {
  if (live_) {
    EXPECT_EQ(cu().MemRelease(handle), CUDA_SUCCESS);
  }
}

mapped::mapped(CUdeviceptr where, std::size_t n, CUmemGenericAllocationHandle handle)
    : at(where), bytes(n) {
  MUST(cu().MemMap(where, n, 0, handle, 0));
}
mapped::~mapped() {
  if (at != 0) {
    EXPECT_EQ(cu().MemUnmap(at, bytes), CUDA_SUCCESS);
  }
}

allocated::allocated(std::size_t bytes) {
  MUST(cu().MemAlloc(&at, bytes));
}
allocated::~allocated() {
  EXPECT_EQ(cu().MemFree(at), CUDA_SUCCESS);
}

stream::stream(unsigned flags) {
  MUST(cu().StreamCreate(&handle, flags));
}
stream::~stream() {
  EXPECT_EQ(cu().StreamDestroy(handle), CUDA_SUCCESS);
}

event::event() {
  MUST(cu().EventCreate(&handle, CU_EVENT_DISABLE_TIMING));
}
event::~event() {
  EXPECT_EQ(cu().EventDestroy(handle), CUDA_SUCCESS);
}

void driver_test::SetUp() {
  std::string reason = cu().missing;
  if (reason.empty() && device_zero().code != CUDA_SUCCESS)
    reason = cu().path + ": " + device_zero().step + " returned " + name_of(device_zero().code);
  if (!reason.empty()) SKIP_OR_FAIL_BECAUSE(reason);
  if (hostcuda_is("unbacked"))
    SKIP_BECAUSE("hostcuda keeps only the books (unbacked): there are no contents to judge");
  MUST(cu().CtxSetCurrent(device_zero().context));
  MUST(cu().DriverGetVersion(&version));
  MUST(cu().DeviceGetCount(&devices));
  int supported = 0;
  // A driver from before 10.2 does not know the attribute.
  vmm_ =
      cu().MemCreate != nullptr &&
      cu().DeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                              0) == CUDA_SUCCESS &&
      supported != 0;
  before_ = read_books();
  ready_ = true;
}

driver_test::books driver_test::read_books() const {
  books b;
  std::size_t total = 0;
  MUST(cu().CtxSynchronize());
  MUST(cu().MemGetInfo(&b.free_bytes, &total));
  if (cu().is_hostcuda()) MUST(cu().hostcuda_get_counters(&b.counters));
  return b;
}

void driver_test::TearDown() {
  if (!ready_ || broken_) return;
  MUST(cu().CtxSetCurrent(device_zero().context));
  books now = read_books();
  if (cu().is_hostcuda()) {
    EXPECT_EQ(now.free_bytes, before_.free_bytes);
    EXPECT_EQ(now.counters.physical_bytes, before_.counters.physical_bytes);
    EXPECT_EQ(now.counters.live_handles, before_.counters.live_handles);
    EXPECT_EQ(now.counters.live_mappings, before_.counters.live_mappings);
    EXPECT_EQ(now.counters.live_reservations, before_.counters.live_reservations);
    EXPECT_EQ(now.counters.live_streams, before_.counters.live_streams);
    EXPECT_EQ(now.counters.live_events, before_.counters.live_events);
    EXPECT_EQ(now.counters.violations, before_.counters.violations);
    return;
  }
  if (variable_is_set("STILLMAP_SHARED_GPU")) return;  // the figure belongs to others, too
  for (int i = 0; i < 20 && now.free_bytes + tolerated_drift < before_.free_bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    now = read_books();
  }
  EXPECT_GE(now.free_bytes + tolerated_drift, before_.free_bytes)
      << "device memory was not given back (set STILLMAP_SHARED_GPU=1 where others use the device)";
}

int driver_test::attribute(CUdevice_attribute which, int device) const {
  int value = 0;
  return cu().DeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

void vmm_test::SetUp() {
  driver_test::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  if (!has_vmm()) SKIP_BECAUSE("device 0 has no virtual memory management (attribute 102 is 0)");
  const CUmemAllocationProp p = properties();
  MUST(cu().MemGetAllocationGranularity(&page, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

}  // namespace stillmap::conformance
