#include "stillmap/checkpoint/base/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {
namespace {

constexpr std::size_t max_key_bytes = 256;

std::string mode_text(mode_t mode) {
  char text[16];
  std::snprintf(text, sizeof text, "mode %04o", static_cast<unsigned>(mode & 07777));
  return text;
}

status check_mode(int fd, const std::string &path) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) {
    return make_system_error(errno, "the key file's mode cannot be read", path);
  }
  // A file of another user is that user's decision, as where root lets a group read it.
  const mode_t refused = st.st_uid == ::geteuid() ? 077 : 027;
  if ((st.st_mode & refused) == 0) return {};
  const error e =
      make_system_error(EACCES,
                        "users other than its owner may read or write the key file: run "
                        "chmod 600 on it, or make a new key",
                        path)
          .value();
  return tl::unexpected<error>(
      e.with({.found = mode_text(st.st_mode), .expected = mode_text(st.st_mode & ~refused)}));
}

}  // namespace

result<std::string> read_key_file(const std::string &path, std::size_t max_bytes, secrecy who) {
  const operation_scope scope("checkpoint::read_key_file");
  const auto about_key = [&](const error &e) { return in_file(tl::unexpected<error>(e), path); };
  // As images are: the path may lead to a pipe that nobody writes to.
  auto in = block_file::open_to_read(file_system::system(), AT_FDCWD, path, false);
  if (!in) return about_key(in.error());
  if (who == secrecy::owner) STILLMAP_RETURN_IF_ERROR(check_mode(in->fd(), path));
  const auto size = in->size();
  if (!size) return about_key(size.error());
  if (*size > max_bytes) {
    return in_file(make_error(errc::invalid_argument, "the file is too large", *size, max_bytes,
                              error_unit::bytes),
                   path);
  }
  std::string text(*size, '\0');
  if (const status s = in->read(std::as_writable_bytes(std::span(text)), 0); !s) {
    return about_key(s.error());
  }
  return text;
}

result<std::array<std::byte, 32>> read_key(const std::string &path, secrecy who) {
  const operation_scope scope("checkpoint::read_key");
  STILLMAP_ASSIGN_OR_RETURN(std::string text, read_key_file(path, max_key_bytes, who));
  std::array<std::byte, 32> key{};
  if (text.size() == key.size()) {
    std::memcpy(key.data(), text.data(), key.size());
    return key;
  }
  const std::size_t found = text.size();
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  bool good = text.size() == 2 * key.size();
  for (std::size_t i = 0; good && i < key.size(); ++i) {
    const char *const digits = text.data() + 2 * i;
    std::uint8_t value = 0;
    good = std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
    key[i] = static_cast<std::byte>(value);
  }
  if (good) return key;
  return in_file(make_error(errc::invalid_argument, "a key is 32 bytes, or 64 hexadecimal digits",
                            found, key.size(), error_unit::bytes),
                 path);
}

}  // namespace stillmap::checkpoint
