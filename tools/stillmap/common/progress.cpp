#include "tools/stillmap/common/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tools/stillmap/common/size.h"

namespace stillmap::tool {
namespace {

constexpr auto redraw_every = std::chrono::milliseconds(80);
constexpr auto say_every = std::chrono::seconds(3);
constexpr std::size_t bar_cells = 20;

}  // namespace

progress::progress(std::string what, std::uint64_t expected, bool silent)
    : what_(std::move(what)),
      expected_(expected),
      silent_(silent),
      terminal_(terminal_of(stderr)) {}

std::string progress::bar(std::uint64_t bytes) const {
  if (expected_ == 0) return "";
  const double part = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(expected_));
  const auto full = static_cast<std::size_t>(part * bar_cells);
  std::string out = terminal_.utf8 ? "" : "[";
  for (std::size_t i = 0; i < bar_cells; ++i) {
    out += terminal_.utf8 ? (i < full ? "█" : "░") : (i < full ? "#" : ".");
  }
  out += terminal_.utf8 ? " " : "] ";
  return out + fmt::format("{:3.0f}% ", part * 100);
}

void progress::update(std::uint64_t bytes, std::string_view detail) {
  if (silent_) return;
  const auto now = clock::now();
  if (now - shown_ < (terminal_.tty ? clock::duration(redraw_every) : clock::duration(say_every))) {
    return;
  }
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const auto rate =
      static_cast<std::uint64_t>(static_cast<double>(bytes) / std::max(seconds, 1e-9));
  std::string numbers = fmt::format("{}, {}/s", format_bytes(bytes), format_bytes(rate));
  if (expected_ > bytes && rate != 0) {
    const std::uint64_t left = (expected_ - bytes + rate - 1) / rate;
    numbers += fmt::format(", {}:{:02} left", left / 60, left % 60);
  }
  if (!detail.empty()) numbers += fmt::format(", {}", detail);
  if (!terminal_.tty) {
    fmt::print(stderr, "{}: {}\n", what_, numbers);
    return;
  }
  // The bar has more bytes than columns; the ASCII text after it is cut to the terminal width.
  const std::string head = fmt::format("{} {}", what_, bar(bytes));
  const std::size_t columns = what_.size() + 1 + (expected_ == 0 ? 0 : bar_cells + 7);
  const auto width = static_cast<std::size_t>(terminal_.width);
  numbers.resize(std::min(numbers.size(), width > columns + 1 ? width - columns - 1 : 0));
  fmt::print(stderr, "\r{}{}\x1b[K", head, numbers);
  std::fflush(stderr);
  drawn_ = true;
}

void progress::finish() {
  if (!drawn_) return;
  drawn_ = false;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace stillmap::tool
