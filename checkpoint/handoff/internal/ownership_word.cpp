#include "stillmap/checkpoint/handoff/internal/ownership_word.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace stillmap::handoff {
namespace {

constexpr std::size_t word_bytes = 4096;
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

result<ownership_word> ownership_word::create() {
  auto fd = fork_closed_fd::create(
      [] { return ::memfd_create("stillmap-handoff", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (fd.get() < 0) return make_system_error(errno, "shared memory cannot be created");
  if (::ftruncate(fd.get(), word_bytes) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
    return make_system_error(errno, "shared memory cannot be sized");
  }
  return map(std::move(fd));
}

result<ownership_word> ownership_word::open(owned_fd fd) {
  struct stat st {};
  const int sealed = ::fcntl(fd.get(), F_GET_SEALS);
  if (sealed < 0 || (sealed & F_SEAL_SHRINK) == 0 || (sealed & F_SEAL_WRITE) != 0 ||
      ::fstat(fd.get(), &st) != 0 || st.st_size != static_cast<off_t>(word_bytes)) {
    return make_error(errc::corrupt, "the peer did not send an ownership word");
  }
  return map(fork_closed_fd::adopt(fd.release()));
}

result<ownership_word> ownership_word::map(fork_closed_fd fd) {
  void *const at = ::mmap(nullptr, word_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return make_system_error(errno, "shared memory cannot be mapped");
  return ownership_word(std::move(fd), static_cast<std::uint32_t *>(at));
}

void ownership_word::unmap::operator()(std::uint32_t *word) const {
  ::munmap(word, word_bytes);
}

ownership ownership_word::load() const {
  return static_cast<ownership>(std::atomic_ref(*word_).load());
}

bool ownership_word::change(ownership from, ownership to) {
  auto expected = static_cast<std::uint32_t>(from);
  return std::atomic_ref(*word_).compare_exchange_strong(expected, static_cast<std::uint32_t>(to));
}

bool ownership_word::revoke() {
  // A receiver that lies can write anything; only `receiver` is a commit.
  for (ownership now = load(); now != ownership::receiver; now = load()) {
    if (change(now, ownership::revoked)) return true;
  }
  return false;
}

}  // namespace stillmap::handoff
