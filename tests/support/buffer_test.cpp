#include "tests/support/buffer_test.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "stillmap/vmm/context.h"

namespace stillmap::testing {

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  // By words: a sanitizer looks at every access.
  std::vector<unsigned char> out(bytes);
  unsigned char *const to = out.data();
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;
    x ^= x >> 29;
    std::memcpy(to + i, &x, std::min<std::size_t>(8, bytes - i));
  }
  return out;
}

void put(const device &d, device_address at, const std::vector<unsigned char> &bytes) {
  const context_guard guard(d.driver(), d.context());
  const status s = d.driver().copy_to_device(at, bytes.data(), bytes.size());
  if (!s) throw std::runtime_error(s.error().message());
}

std::vector<unsigned char> get(const device &d, device_address at, std::size_t bytes) {
  std::vector<unsigned char> out(bytes);
  const context_guard guard(d.driver(), d.context());
  const status s = d.driver().copy_to_host(out.data(), at, bytes);
  if (!s) throw std::runtime_error(s.error().message());
  return out;
}

::testing::AssertionResult holds(const device &d, device_address at, std::size_t bytes,
                                 unsigned seed) {
  const std::vector<unsigned char> wanted = pattern(bytes, seed), found = get(d, at, bytes);
  if (std::memcmp(wanted.data(), found.data(), bytes) == 0) return ::testing::AssertionSuccess();
  const auto [w, f] = std::mismatch(wanted.begin(), wanted.end(), found.begin());
  return ::testing::AssertionFailure()
         << "byte " << (w - wanted.begin()) << " of " << bytes << " is " << int{*f}
         << " where pattern " << seed << " has " << int{*w};
}

::testing::AssertionResult fails_with(const status &s, errc c, const char *operation) {
  if (s) return ::testing::AssertionFailure() << "it succeeded";
  if (!s.error().is(c) || std::string_view(s.error().operation) != operation) {
    return ::testing::AssertionFailure() << s.error().message();
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult fails_with(const status &s, errc c, const char *operation,
                                      std::uint64_t value, std::uint64_t limit) {
  const auto kind = fails_with(s, c, operation);
  if (!kind) return kind;
  if (s.error().value != value || s.error().limit != limit) {
    return ::testing::AssertionFailure()
           << s.error().message() << "; expected value " << value << ", limit " << limit;
  }
  return ::testing::AssertionSuccess();
}

void buffer_test::SetUp() {
  device_test::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  device_ = open_device();
}

void buffer_test::TearDown() {
  device_.reset();
  device_test::TearDown();
}

growable_buffer buffer_test::make(buffer_options options) const {
  auto made = growable_buffer::create(dev(), std::move(options));
  if (!made) throw std::runtime_error(made.error().message());
  return std::move(*made);
}

growable_buffer buffer_test::filled(std::size_t pages, const char *tag, unsigned seed) const {
  buffer_options options;
  options.reserve_bytes = std::size_t{64} << 20;
  options.tag = tag;
  growable_buffer b = make(std::move(options));
  if (!b.resize(pages * page())) throw std::runtime_error("resize");
  put(dev(), b.address(), pattern(pages * page(), seed));
  return b;
}

stream buffer_test::make_stream() const {
  auto made = stream::create(dev());
  if (!made) throw std::runtime_error(made.error().message());
  return std::move(*made);
}

fence buffer_test::after(const stream &s) const {
  auto made = fence::after(dev(), s);
  if (!made) throw std::runtime_error(made.error().message());
  return std::move(*made);
}

void buffer_test::leave_free(std::size_t pages) const {
  hostcuda_control::occupy(0, 0);
  const std::size_t free = dev().memory()->free.bytes();
  hostcuda_control::occupy(0, free - pages * page());
}

void buffer_test::restart_as(const char *config) {
  device_.reset();
  become(config);
  device_ = open_device();
}

void buffer_test::restart_with(const char *setting) {
  restart_as((hostcuda_control::config() + "," + setting).c_str());
}

}  // namespace stillmap::testing
