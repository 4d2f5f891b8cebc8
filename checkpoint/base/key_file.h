// Reads a key or a certificate from a file, and refuses a secret one that others may read or write: its
// owner is not the only one who knows it, or not the one who chose it.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "stillmap/vmm/base/error.h"

namespace stillmap::checkpoint {

enum class secrecy {
  everybody,  // a certificate, or a key that verifies signatures
  owner,      // a private key, or one that decrypts
};

// Errors: EACCES (a secret file that others may read or write; of another user's file, that everybody
//         may read or its group may write: found and expected are the modes), invalid_argument
//         (larger than max_bytes: value, limit, in bytes), not_supported (not a regular file), the
//         system's; the subject is the path.
// Allocates host memory: may throw std::bad_alloc.
result<std::string> read_key_file(const std::string &path, std::size_t max_bytes, secrecy who);

// Reads a key of 32 bytes: as they are, or as 64 hexadecimal digits.
// Errors: as read_key_file; invalid_argument (something else: value, in bytes).
result<std::array<std::byte, 32>> read_key(const std::string &path, secrecy who);

}  // namespace stillmap::checkpoint
