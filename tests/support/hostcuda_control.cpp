#include "tests/support/hostcuda_control.h"

#include <stdexcept>

#include "stillmap/vmm/base/cuda_errors.h"

namespace stillmap::testing::hostcuda_control {
namespace {

template <class... Parameters, class... Arguments>
void call(const char *name, CUresult (*)(Parameters...), Arguments... arguments) {
  const auto drv = driver::get();
  if (!drv) throw std::runtime_error(drv.error().message());
  void *const symbol = (*drv)->symbol(name);
  if (symbol == nullptr)
    throw std::runtime_error(std::string(name) + ": the driver is no hostcuda");
  const CUresult r = reinterpret_cast<CUresult (*)(Parameters...)>(symbol)(arguments...);
  if (r != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(name) + ": " + describe_cuda_error(r).name);
  }
}

// The declaration in hostcuda.h gives the type; nothing is linked.
#define HOSTCUDA_CALL(function, ...) \
  call(#function, static_cast<decltype(&function)>(nullptr) __VA_OPT__(, ) __VA_ARGS__)

}  // namespace

bool available() {
  const auto drv = driver::get();
  return drv && (*drv)->is_simulator();
}

void reset(const char *config) {
  HOSTCUDA_CALL(hostcuda_reset, config);
}

std::string config() {
  const char *text = nullptr;
  HOSTCUDA_CALL(hostcuda_config, &text);
  return text;
}

void occupy(int device, std::size_t bytes) {
  HOSTCUDA_CALL(hostcuda_occupy, device, bytes);
}

std::uint64_t calls(const char *name) {
  std::uint64_t n = 0;
  HOSTCUDA_CALL(hostcuda_calls, name, &n);
  return n;
}

hostcuda_counters counters() {
  hostcuda_counters out = {};
  HOSTCUDA_CALL(hostcuda_get_counters, &out);
  return out;
}

void fail(const char *name, std::uint64_t nth, CUresult code) {
  HOSTCUDA_CALL(hostcuda_fail, name, nth, code);
}

void fail_from(const char *name, std::uint64_t nth, CUresult code) {
  HOSTCUDA_CALL(hostcuda_fail_from, name, nth, code);
}

void before(const char *name, std::uint64_t nth, std::function<void()> &act) {
  const auto run = [](void *user) { (*static_cast<std::function<void()> *>(user))(); };
  HOSTCUDA_CALL(hostcuda_before, name, nth, +run, &act);
}

void stop_failing(const char *name) {
  HOSTCUDA_CALL(hostcuda_fail, name, 0, CUDA_SUCCESS);
}

std::uint64_t faults_fired() {
  std::uint64_t n = 0;
  HOSTCUDA_CALL(hostcuda_faults_fired, &n);
  return n;
}

void hold(stream_handle stream) {
  HOSTCUDA_CALL(hostcuda_hold, stream);
}
void release(stream_handle stream) {
  HOSTCUDA_CALL(hostcuda_release, stream);
}

std::vector<hostcuda_violation> violations() {
  std::vector<hostcuda_violation> out;
  const std::uint64_t n = counters().violations;
  for (std::uint64_t i = 0; i < n && i < 64; ++i) {
    HOSTCUDA_CALL(hostcuda_get_violation, i, &out.emplace_back());
  }
  return out;
}

}  // namespace stillmap::testing::hostcuda_control
