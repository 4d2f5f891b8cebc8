// Devices: count, handles, names and addresses.
#include <strings.h>

#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>

#include "hostcuda/nvml/src/library.h"

namespace nvml {
namespace {

constexpr unsigned kUuidBytes = 41;  // GPU-, 32 digits, four dashes, the end

void write_uuid(const hostcuda_device &d, char *out) {
  const unsigned char *b = d.uuid;
  std::snprintf(out, kUuidBytes,
                "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                b[14], b[15]);
}

struct bus_address {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  unsigned function = 0;
};

// The three documented forms: domain:bus:device.function without the function or the domain.
bool parse_address(std::string_view text, bus_address *out) {
  unsigned numbers[4] = {};
  std::string separators;
  const char *const end = text.data() + text.size();
  const char *at = text.data();
  for (unsigned &number : numbers) {
    const auto [rest, error] = std::from_chars(at, end, number, 16);
    if (error != std::errc{}) return false;
    at = rest;
    if (at == end) break;
    separators += *at++;
  }
  const auto [first, second, third, fourth] = numbers;
  if (separators == "::." && at == end) {
    *out = {first, second, third, fourth};
  } else if (separators == "::") {
    *out = {first, second, third, 0};
  } else if (separators == ":.") {
    *out = {0, first, second, third};
  } else {
    return false;
  }
  return true;
}

// The handle of the first device for which `is_it(description)`.
template <class Test>
nvmlReturn_t find(const Test &is_it, nvmlDevice_t *out) {
  hostcuda_device d{};
  for (int i = 0; describe(i, &d); ++i)
    if (is_it(d)) {
      *out = handle_of(i);
      return NVML_SUCCESS;
    }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t count(unsigned *out) {
  return enter([out] {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *out = device_count();
    return NVML_SUCCESS;
  });
}

nvmlReturn_t by_index(unsigned index, nvmlDevice_t *out) {
  return enter([=] {
    if (out == nullptr || index >= device_count()) return NVML_ERROR_INVALID_ARGUMENT;
    *out = handle_of(static_cast<int>(index));
    return NVML_SUCCESS;
  });
}

nvmlReturn_t by_address(const char *text, nvmlDevice_t *out) {
  return enter([=] {
    bus_address a;
    if (text == nullptr || out == nullptr || !parse_address(text, &a))
      return NVML_ERROR_INVALID_ARGUMENT;
    return find(
        [&a](const hostcuda_device &d) {
          return a.domain == 0 && a.slot == 0 && a.function == 0 &&
                 a.bus == static_cast<unsigned>(d.pci_bus);
        },
        out);
  });
}

// Version 1 of the structure ends before pciSubSystemId, version 2 before busId.
enum class pci_version { v1, v2, v3 };

nvmlReturn_t address(nvmlDevice_t device, nvmlPciInfo_t *out, pci_version version) {
  return enter(device, [=](int, const hostcuda_device &d) {
    if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const auto bus = static_cast<unsigned>(d.pci_bus);
    std::snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "0000:%02X:00.0", bus & 0xffU);
    out->domain = 0;
    out->bus = bus;
    out->device = 0;
    out->pciDeviceId = static_cast<unsigned>(d.pci_device_id);
    if (version == pci_version::v1) return NVML_SUCCESS;
    out->pciSubSystemId = static_cast<unsigned>(d.pci_subsystem_id);
    if (version == pci_version::v2) return NVML_SUCCESS;
    std::snprintf(out->busId, sizeof out->busId, "00000000:%02X:00.0", bus & 0xffU);
    return NVML_SUCCESS;
  });
}

}  // namespace
}  // namespace nvml

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) {
  return nvml::count(count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
  return nvml::count(count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
  return nvml::by_index(index, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
  return nvml::by_index(index, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  return nvml::enter([=] {
    if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    return nvml::find(
        [uuid](const hostcuda_device &d) {
          char text[nvml::kUuidBytes];
          nvml::write_uuid(d, text);
          return strcasecmp(uuid, text) == 0;
        },
        device);
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) {
  return nvml::by_address(id, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
  return nvml::by_address(id, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
  return nvml::enter(
      device, [=](int, const hostcuda_device &d) { return nvml::put(d.name, name, length); });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
  return nvml::enter(device, [=](int, const hostcuda_device &d) {
    char text[nvml::kUuidBytes];
    nvml::write_uuid(d, text);
    return nvml::put(text, uuid, length);
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
  return nvml::enter(device, [=](int ordinal, const hostcuda_device &) {
    if (index == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *index = static_cast<unsigned>(ordinal);
    return NVML_SUCCESS;
  });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  return nvml::address(device, pci, nvml::pci_version::v1);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  return nvml::address(device, pci, nvml::pci_version::v2);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  return nvml::address(device, pci, nvml::pci_version::v3);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
                                                            int *minor) {
  return nvml::enter(device, [=](int, const hostcuda_device &d) {
    if (major == nullptr || minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *major = d.compute_major;
    *minor = d.compute_minor;
    return NVML_SUCCESS;
  });
}
