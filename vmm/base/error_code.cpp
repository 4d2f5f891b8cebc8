#include "stillmap/vmm/base/error_code.h"

#include <string>

#include "stillmap/vmm/base/undying.h"

namespace stillmap {
namespace {

class stillmap_category_type final : public std::error_category {
 public:
  const char *name() const noexcept override { return "stillmap"; }

  std::string message(int code) const override {
    switch (static_cast<errc>(code)) {
      case errc::out_of_memory:
        return "out of memory";
      case errc::address_space_exhausted:
        return "address space exhausted";
      case errc::invalid_argument:
        return "invalid argument";
      case errc::not_supported:
        return "not supported";
      case errc::busy:
        return "busy";
      case errc::device_lost:
        return "device lost";
      case errc::corrupt:
        return "corrupt";
      case errc::operation_canceled:
        return "operation cancelled";
    }
    return code == 0 ? "no error" : "unknown code " + std::to_string(code);
  }

  std::error_condition default_error_condition(int code) const noexcept override {
    if (code != static_cast<int>(errc::operation_canceled)) return {code, *this};
    return std::errc::operation_canceled;
  }

  // Host memory is memory: std::errc::not_enough_memory is errc::out_of_memory, not the reverse.
  bool equivalent(const std::error_code &code, int condition) const noexcept override {
    return std::error_category::equivalent(code, condition) ||
           (condition == static_cast<int>(errc::out_of_memory) &&
            code == std::errc::not_enough_memory);
  }
};

}  // namespace

// Never destroyed: destructors of statics report errors too.
const std::error_category &stillmap_category() noexcept {
  static undying<stillmap_category_type> category;
  return *category;
}

std::error_code make_error_code(errc c) noexcept {
  return {static_cast<int>(c), stillmap_category()};
}

std::error_condition make_error_condition(errc c) noexcept {
  return {static_cast<int>(c), stillmap_category()};
}

}  // namespace stillmap
