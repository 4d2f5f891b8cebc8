#include "stillmap/allocators/torch/internal/last_error.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <new>

namespace stillmap::torch_plugin {
namespace {

// Not a std::string, which would be destroyed before the last static destructor frees a block.
thread_local constinit std::array<char, 512> remembered{};

constexpr int most_reports = 16;

}  // namespace

void remember_error(const error &e) noexcept {
  try {
    std::snprintf(remembered.data(), remembered.size(), "%s", e.message().c_str());
  } catch (const std::bad_alloc &) {
    std::snprintf(remembered.data(), remembered.size(), "%s: %s", e.operation, e.reason);
  }
}

void report_error(const error &e) noexcept {
  remember_error(e);
  static constinit std::atomic<int> reported{0};
  if (reported.fetch_add(1, std::memory_order_relaxed) < most_reports) {
    std::fprintf(stderr, "stillmap: %s\n", remembered.data());
  }
}

const char *last_error_text() noexcept {
  return remembered.data();
}

}  // namespace stillmap::torch_plugin
