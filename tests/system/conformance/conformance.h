// Shared by the conformance tests: a device with its primary context, owners that release what a
// test created, two ways of judging a driver's answer, and a check that nothing leaks.
//
// A test whose name begins with a number, `a43_...`, is that assertion of README.md. Its answer is
// printed as `[ RECORD   ] 43: <text>` and kept as the property a43 of the test in gtest's report.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/system/conformance/raw_driver.h"

namespace stillmap::conformance {

inline constexpr std::size_t kib = std::size_t{1} << 10;
inline constexpr std::size_t mib = std::size_t{1} << 20;
inline constexpr std::size_t gib = std::size_t{1} << 30;

// "1 (CUDA_ERROR_INVALID_VALUE)"
std::string name_of(CUresult code);

// ---- Judging --------------------------------------------------------------------------------

// Prints and keeps what happened under assertion `number`.
void record(int number, const std::string &text);

// Records what `label` returned and expects it to be one of `wanted`.
void expect_code(int number, const std::string &label, CUresult got,
                 std::initializer_list<CUresult> wanted);

// Records what `label` returned and expects any error.
void expect_error(int number, const std::string &label, CUresult got);

// Throws unless `got` is success: the test ends there as failed and its owners clean up.
void must(CUresult got, const char *what);
#define MUST(call) ::stillmap::conformance::must((call), #call)

// Ends the test as skipped, in a form that a parent process of the test understands.
void print_skip(const std::string &reason);
#define SKIP_BECAUSE(reason)                      \
  do {                                            \
    const std::string reason_ = (reason);         \
    ::stillmap::conformance::print_skip(reason_); \
    GTEST_SKIP() << reason_;                      \
  } while (false)
#define SKIP_WITHOUT(name)                           \
  if (::stillmap::conformance::cu().name == nullptr) \
  SKIP_BECAUSE("this driver is older than cu" #name)

// Whether a missing driver or device is a failure: STILLMAP_REQUIRE_GPU=1, or a driver other than
// the machine's was asked for by name.
bool driver_is_required();
#define SKIP_OR_FAIL_BECAUSE(reason)                                       \
  do {                                                                     \
    if (::stillmap::conformance::driver_is_required()) FAIL() << (reason); \
    SKIP_BECAUSE(reason);                                                  \
  } while (false)

// Whether hostcuda is the driver and runs with this setting.
bool hostcuda_is(const char *setting);

// ---- Contents -------------------------------------------------------------------------------

// Bytes that differ everywhere and for every seed.
std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed);
void write_pattern(CUdeviceptr at, std::size_t bytes, unsigned seed);
::testing::AssertionResult holds_pattern(CUdeviceptr at, std::size_t bytes, unsigned seed);

// The code of a small copy from / to the device.
CUresult try_read(CUdeviceptr at);
CUresult try_write(CUdeviceptr at);

// ---- Owners: constructors throw on an error, destructors expect the driver to take it back ---

CUmemAllocationProp properties(int device = 0, unsigned handle_types = CU_MEM_HANDLE_TYPE_NONE);
CUmemAccessDesc access_for(int device, CUmemAccess_flags flags);
CUresult grant(CUdeviceptr at, std::size_t bytes,
               CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, int device = 0);

class reserved {
 public:
  explicit reserved(std::size_t n, std::size_t alignment = 0, CUdeviceptr hint = 0);
  reserved(const reserved &) = delete;
  reserved &operator=(const reserved &) = delete;
  ~reserved();
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  void forget() { at = 0; }  // the test gave it back itself
};

class physical {
 public:
  explicit physical(std::size_t n, unsigned handle_types = CU_MEM_HANDLE_TYPE_NONE, int device = 0);
  physical(const physical &) = delete;
  physical &operator=(const physical &) = delete;
  ~physical();
  CUmemGenericAllocationHandle handle = 0;
  std::size_t bytes = 0;
  void forget() { live_ = false; }

 private:
  bool live_ = true;
};

class mapped {
 public:
  mapped(CUdeviceptr where, std::size_t n, CUmemGenericAllocationHandle handle);
  mapped(CUdeviceptr where, const physical &whole) : mapped(where, whole.bytes, whole.handle) {}
  mapped(const mapped &) = delete;
  mapped &operator=(const mapped &) = delete;
  ~mapped();
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  void forget() { at = 0; }
};

class allocated {
 public:
  explicit allocated(std::size_t bytes);
  allocated(const allocated &) = delete;
  allocated &operator=(const allocated &) = delete;
  ~allocated();
  CUdeviceptr at = 0;
};

class stream {
 public:
  explicit stream(unsigned flags = CU_STREAM_NON_BLOCKING);
  stream(const stream &) = delete;
  stream &operator=(const stream &) = delete;
  ~stream();
  CUstream handle = nullptr;
};

class event {
 public:
  event();
  event(const event &) = delete;
  event &operator=(const event &) = delete;
  ~event();
  CUevent handle = nullptr;
};

// ---- Fixtures -------------------------------------------------------------------------------

// Device 0 with its primary context current; skips where there is no driver or device
// (STILLMAP_REQUIRE_GPU=1: fails). After the test nothing may have stayed behind.
class driver_test : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  int attribute(CUdevice_attribute which, int device = 0) const;
  bool has_vmm() const { return vmm_; }
  // The context is beyond use: nothing can be asked of it any more.
  void expect_broken_context() { broken_ = true; }

  int version = 0;
  int devices = 0;

 private:
  struct books {
    std::size_t free_bytes = 0;
    hostcuda_counters counters{};
  };
  books read_books() const;

  books before_;
  bool ready_ = false;
  bool vmm_ = false;
  bool broken_ = false;
};

// The same, skipping where the device has no virtual memory management.
class vmm_test : public driver_test {
 protected:
  void SetUp() override;
  std::size_t page = 0;  // minimum granularity of device 0
};

}  // namespace stillmap::conformance
