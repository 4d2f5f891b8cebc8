#include <fcntl.h>
#include <fmt/format.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "stillmap/checkpoint/snapshot/internal/chunk_digests.h"
#include "stillmap/vmm/growable_buffer.h"
#include "tools/stillmap/doctor/checkpoint.h"

namespace stillmap::tool {

finding device_digests(const device &d) {
  finding f{"device_digests", "snapshots: digests", works::yes,
            "computed by the device: unchanged memory is neither copied nor written again", ""};
  constexpr std::size_t chunk = 64 << 10;
  buffer_options options;
  options.reserve_bytes = chunk;
  auto buffer = growable_buffer::create(d, options);
  std::string why;
  if (!buffer) {
    why = buffer.error().message();
  } else if (const status s = buffer->resize(chunk); !s) {
    why = s.error().message();
  } else {
    const virtual_range one{buffer->address(), chunk};
    if (const auto made = snapshot::chunk_digests(d, {&one, 1}); !made)
      why = made.error().message();
  }
  if (why.empty()) return f;
  f.does = works::limited;
  f.says = "the device cannot compute them (" + why +
           "): incremental snapshots copy all memory, and a migration stops the task to copy";
  f.fix = "a driver that supports this device's architecture";
  return f;
}

finding io_uring(int error, std::optional<int> disabled) {
  finding f{"io_uring", "snapshots: io_uring", works::yes, "several writes run at once", ""};
  if (error == 0) return f;
  f.does = works::limited;
  const std::string instead = "; images are written with one write at a time";
  if (error == ENOSYS) {
    f.says = "not in this kernel" + instead;
    f.fix = "Linux 5.1 or newer";
  } else if (disabled.value_or(0) != 0) {
    f.says = fmt::format("switched off (kernel.io_uring_disabled = {}){}", *disabled, instead);
    f.fix = "sysctl kernel.io_uring_disabled=0";
  } else if (error == EPERM || error == EACCES) {
    f.says = "forbidden, most likely by the container's seccomp profile" + instead;
    f.fix = "a profile that allows io_uring_setup, io_uring_enter and io_uring_register";
  } else {
    f.says = fmt::format("refused ({}){}", std::strerror(error), instead);
    f.fix = error == ENOMEM ? "ulimit -l unlimited" : "";
  }
  return f;
}

finding io_uring_here() {
  io_uring_params p = {};
  const long fd = ::syscall(__NR_io_uring_setup, 4, &p);
  const int error = fd < 0 ? errno : 0;
  if (fd >= 0) ::close(static_cast<int>(fd));
  std::optional<int> disabled;
  std::ifstream in("/proc/sys/kernel/io_uring_disabled");
  if (int n = 0; in >> n) disabled = n;
  return io_uring(error, disabled);
}

finding direct_io_here() {
  finding f{"direct_io", "snapshots: direct I/O", works::yes,
            "files in this folder can bypass the page cache", ""};
  const int fd = ::open(".", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0) {
    ::close(fd);
    return f;
  }
  const int why = errno;
  f.does = works::limited;
  if (why == EINVAL || why == EOPNOTSUPP) {
    f.says = "not supported by the file system of this folder: images go through the page cache";
    f.fix = "save to ext4 or XFS";
  } else {
    f.says = fmt::format("unknown: no file can be created in this folder ({})", std::strerror(why));
    f.fix = "run the doctor in the folder for images";
  }
  return f;
}

}  // namespace stillmap::tool
