#include "stillmap/c_api/internal/structs.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "stillmap/vmm/base/try.h"

namespace stillmap::c_api {
namespace {

constexpr std::size_t most_items = 65536;

std::size_t size_in(const void *given) noexcept {
  std::size_t bytes = 0;
  std::memcpy(&bytes, given, sizeof bytes);
  return bytes;
}

status check_items(const void *given, std::size_t count) noexcept {
  if (count > most_items) {
    return make_error(errc::invalid_argument, "too many items", count, most_items,
                      error_unit::items);
  }
  if (given == nullptr && count != 0) return missing("a count without its array: it is NULL");
  return {};
}

}  // namespace

status check_struct(const void *given, std::size_t known) noexcept {
  if (given == nullptr) return missing("the struct is NULL");
  const std::size_t bytes = size_in(given);
  // Every version of a struct is a multiple of it; another size would cut a member.
  if (bytes < sizeof(std::size_t) || bytes % alignof(std::size_t) != 0 || bytes > largest_struct) {
    return make_error(errc::invalid_argument, "struct_size is not the size of the struct", bytes,
                      known, error_unit::bytes);
  }
  return {};
}

status read_struct(const void *given, void *into, std::size_t known) noexcept {
  if (given == nullptr) return {};
  STILLMAP_RETURN_IF_ERROR(check_struct(given, known));
  const std::size_t bytes = size_in(given);
  const auto *const begin = static_cast<const unsigned char *>(given);
  if (std::any_of(begin + std::min(bytes, known), begin + bytes,
                  [](unsigned char byte) { return byte != 0; })) {
    return make_error(errc::not_supported,
                      "the struct has members that this library does not know, and they are set",
                      bytes, known, error_unit::bytes);
  }
  std::memcpy(into, given, std::min(bytes, known));
  return {};
}

void write_struct(void *given, const void *values, std::size_t known) noexcept {
  constexpr std::size_t own = sizeof(std::size_t);
  const std::size_t bytes = size_in(given);
  auto *const to = static_cast<unsigned char *>(given);
  std::memcpy(to + own, static_cast<const unsigned char *>(values) + own,
              std::min(bytes, known) - own);
  if (bytes > known) std::memset(to + known, 0, bytes - known);
}

result<std::vector<std::string>> texts_of(const char *const *given, std::size_t count) {
  STILLMAP_RETURN_IF_ERROR(check_items(given, count));
  std::vector<std::string> texts;
  texts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (given[i] == nullptr) {
      return make_error(errc::invalid_argument, "a text of the array is NULL", i, count,
                        error_unit::items);
    }
    texts.emplace_back(given[i]);
  }
  return texts;
}

result<std::vector<int>> ordinals_of(const int *given, std::size_t count) {
  STILLMAP_RETURN_IF_ERROR(check_items(given, count));
  return std::vector<int>(given, given + count);
}

status check_choice(std::uint32_t given, std::uint32_t last, const char *reason) noexcept {
  if (given <= last) return {};
  return make_error(errc::invalid_argument, reason, given, last);
}

result<char *> owned_text(const std::string &text) noexcept {
  auto *const copy = static_cast<char *>(std::malloc(text.size() + 1));
  if (copy == nullptr) return host_out_of_memory();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace stillmap::c_api

void stillmap_string_free(char *text) noexcept {
  std::free(text);
}
