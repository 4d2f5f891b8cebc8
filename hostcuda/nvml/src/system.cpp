// Versions. hostcuda has a version of CUDA, but is no release of NVIDIA's driver: the release is
// the first number of the branch that introduced this version of CUDA, without a build.
#include <string>

#include "hostcuda/nvml/src/library.h"

namespace nvml {
namespace {

int cuda_version() {
  hostcuda_device first{};
  return describe(0, &first) ? first.driver_version : 0;
}

std::string release() {
  const int cuda = cuda_version();
  return std::string(cuda >= 13000 ? "580" : cuda >= 12000 ? "525" : "450") + ".00";
}

nvmlReturn_t put_cuda_version(int *out) {
  return enter([out] {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *out = cuda_version();
    return NVML_SUCCESS;
  });
}

}  // namespace
}  // namespace nvml

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
  return nvml::enter([=] { return nvml::put(nvml::release().c_str(), version, length); });
}

// NVML puts the major version of CUDA before the release.
NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
  return nvml::enter([=] {
    const std::string major = std::to_string(nvml::cuda_version() / 1000);
    return nvml::put((major + "." + nvml::release()).c_str(), version, length);
  });
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
  return nvml::put_cuda_version(version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
  return nvml::put_cuda_version(version);
}
