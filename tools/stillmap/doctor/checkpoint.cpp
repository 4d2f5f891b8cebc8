#include "tools/stillmap/doctor/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/tls.h"
#include "stillmap/checkpoint/snapshot/chunk_digests.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/growable_buffer.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

constexpr std::uint64_t bytes_to_pin = std::uint64_t{64} << 20;
constexpr int first_with_checkpoint = 12080;

status compute_digests(const device &d) {
  constexpr std::size_t chunk = 64 << 10;
  buffer_options options;
  options.reserve_bytes = chunk;
  STILLMAP_ASSIGN_OR_RETURN(auto buffer, growable_buffer::create(d, options));
  STILLMAP_RETURN_IF_ERROR(buffer.resize(chunk));
  const virtual_range one{buffer.address(), chunk};
  STILLMAP_ASSIGN_OR_RETURN(auto digester, snapshot::chunk_digester::create(d, {}));
  STILLMAP_RETURN_IF_ERROR(digester.digests_of({&one, 1}));
  return {};
}

// Creates a listener with a new key: all that a migration needs of OpenSSL to begin.
status listen_with_new_key() {
  STILLMAP_ASSIGN_OR_RETURN(auto mine, migration::make_self_signed("stillmap doctor"));
  STILLMAP_ASSIGN_OR_RETURN(const auto fingerprint, migration::fingerprint_of(mine));
  mine.fingerprints = {fingerprint};
  STILLMAP_RETURN_IF_ERROR(migration::create_tls_acceptor("127.0.0.1:0", mine));
  return {};
}

// "4.2.1" -> {4, 2}; anything else: {0, 0}.
std::pair<int, int> two_numbers(const std::string &text) {
  int major = 0, minor = 0;
  if (std::sscanf(text.c_str(), "%d.%d", &major, &minor) < 1) return {0, 0};
  return {major, minor};
}

}  // namespace

finding integrated_suspend_room() {
  return {"suspend_room", "suspend: room", works::limited,
          "this device's memory is the host's: pinned host memory would take what is released",
          "suspend to a file on a disk (stillmap task suspend --to file), or discard the contents"};
}

finding suspend_room(std::uint64_t device_memory_bytes, const checkpoint::host_room &host) {
  finding f{"suspend_room", "suspend: room"};
  if (host.bytes == UINT64_MAX) {
    f.says = fmt::format("free host memory is unknown; the device has {}",
                         format_bytes(device_memory_bytes));
    return f;
  }
  f.says = fmt::format("{} of host memory free ({}) for the contents of {} of device memory",
                       format_bytes(host.bytes), host.limit, format_bytes(device_memory_bytes));
  if (host.bytes >= device_memory_bytes) return f;
  return f.judged(works::limited,
                  f.says + ": not all of it can be suspended to pinned memory at once",
                  "suspend to a file (stillmap task suspend --to file), or one tag at a time");
}

finding pinned_memory(std::uint64_t tried, const std::string &refused,
                      std::optional<std::uint64_t> limit) {
  const finding f{"pinned_memory", "suspend: pinned memory"};
  const std::string allowed =
      limit ? format_bytes(*limit) + " may be locked (ulimit -l)" : "no limit of locked memory";
  if (refused.empty()) {
    return f.judged(works::yes, fmt::format("{} pinned; {}", format_bytes(tried), allowed));
  }
  return f.judged(
      works::no,
      fmt::format("{} could not be pinned: {}; {}", format_bytes(tried), refused, allowed),
      limit && *limit < tried
          ? "ulimit -l unlimited (LimitMEMLOCK=infinity in systemd, --ulimit memlock=-1 "
            "for containers)"
          : "free host memory, or a larger limit of the control group");
}

std::vector<finding> suspend_findings(const device &d) {
  if (!d.capabilities().vmm) {
    return {{"suspend_room", "suspend", works::no,
             "without virtual memory management, addresses cannot outlive their memory"}};
  }
  rlimit locked = {};
  std::optional<std::uint64_t> limit;
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY) {
    limit = locked.rlim_cur;
  }
  const checkpoint::host_room free = checkpoint::available_host_memory();
  const std::uint64_t bytes = std::min(bytes_to_pin, std::max<std::uint64_t>(4096, free.bytes));
  const context_guard guard(d.driver(), d.context());
  const auto pinned = d.driver().allocate_host(static_cast<std::size_t>(bytes));
  const std::string refused = pinned ? "" : pinned.error().message();
  if (pinned) (void)d.driver().free_host(*pinned);  // nothing to do about a failure
  return {d.capabilities().integrated ? integrated_suspend_room()
                                      : suspend_room(d.total_memory().bytes(), free),
          pinned_memory(bytes, refused, limit)};
}

finding device_digests(const device &d) {
  const finding f{"device_digests", "snapshots: digests", works::yes,
                  "computed by the device: unchanged memory is neither copied nor written again"};
  const status computed = compute_digests(d);
  if (computed) return f;
  return f.judged(
      works::limited,
      "the device cannot compute them (" + computed.error().message() +
          "): incremental snapshots copy all memory, and a migration stops the task to copy",
      "a driver that supports this device's architecture");
}

finding io_uring(int error, std::optional<int> disabled) {
  const finding f{"io_uring", "snapshots: io_uring", works::yes, "several writes run at once"};
  const std::string instead = "; images are written with one write at a time";
  if (error == 0) return f;
  if (error == ENOSYS) {
    return f.judged(works::limited, "not in this kernel" + instead, "Linux 5.1 or newer");
  }
  if (disabled.value_or(0) != 0) {
    return f.judged(
        works::limited,
        fmt::format("switched off (kernel.io_uring_disabled = {}){}", *disabled, instead),
        "sysctl kernel.io_uring_disabled=0");
  }
  if (error == EPERM || error == EACCES) {
    return f.judged(works::limited,
                    "forbidden, most likely by the container's seccomp profile" + instead,
                    "a profile that allows io_uring_setup, io_uring_enter and io_uring_register");
  }
  return f.judged(works::limited, fmt::format("refused ({}){}", std::strerror(error), instead),
                  error == ENOMEM ? "ulimit -l unlimited" : "");
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
  const finding f{"direct_io", "snapshots: direct I/O", works::yes,
                  "files in this folder can bypass the page cache"};
  const int fd = ::open(".", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  const int why = errno;
  if (fd >= 0) {
    ::close(fd);
    return f;
  }
  if (why == EINVAL || why == EOPNOTSUPP) {
    return f.judged(
        works::limited,
        "not supported by the file system of this folder: images go through the page cache",
        "save to ext4 or XFS");
  }
  return f.judged(
      works::limited,
      fmt::format("unknown: no file can be created in this folder ({})", std::strerror(why)),
      "run the doctor in the folder for images");
}

finding handoff(const capabilities &can) {
  finding f{"handoff", "handoff", works::yes,
            "pages created with handle_type::posix_fd move to another process without a copy"};
  if (can.posix_fd_export) {
    if (!can.fabric_export) f.says += "; only on this machine: fabric handles do not work";
    return f;
  }
  if (!can.vmm) {
    return f.judged(
        works::no, "needs virtual memory management",
        "save and restore an image instead (stillmap task snapshot, stillmap image restore)");
  }
  return f.judged(
      works::no,
      can.wsl ? "WSL 2 exports no file descriptors" : "pages cannot be exported as descriptors",
      "save and restore an image, or migrate over the loopback");
}

finding migration_pages(const capabilities &can, bool digests) {
  const finding f{"migration", "migration", works::yes,
                  "memory of a running task can be sent to, and received from, another machine"};
  if (!can.vmm) {
    return f.judged(works::no, "needs virtual memory management at both ends",
                    "a device or vGPU type that has it");
  }
  if (digests) return f;
  return f.judged(works::limited,
                  "without digests computed by the device, the task is stopped for the whole copy",
                  "see: snapshots: digests");
}

finding migration_tls() {
  const finding f{"migration_tls", "migration: TLS 1.3", works::yes,
                  "OpenSSL can create keys and listen; both ends need a certificate"};
  const status listening = listen_with_new_key();
  if (listening) return f;
  return f.judged(
      works::no, listening.error().message(),
      "OpenSSL 3 with TLS 1.3 allowed (MinProtocol, MaxProtocol and Ciphersuites in openssl.cnf)");
}

finding driver_checkpoint(const driver &drv) {
  const finding f{"driver_checkpoint", "the driver's state", works::yes,
                  "the driver has cuCheckpointProcess* and can save its state of a process"};
  if (drv.is_simulator()) return f.judged(works::no, "hostcuda cannot save processes", "a GPU");
  if (drv.version() >= first_with_checkpoint && drv.symbol("cuCheckpointProcessLock") != nullptr) {
    return f;
  }
  return f.judged(
      works::no,
      fmt::format("this driver (CUDA {}) has no cuCheckpointProcess*, which came with {}",
                  version_text(drv.version()), version_text(first_with_checkpoint)),
      "driver 570 or newer");
}

finding criu(const std::optional<std::string> &version, const std::string &kernel) {
  finding f{"criu", "CRIU"};
  if (!version) {
    return f.judged(
        works::no,
        "not found: whole processes cannot be saved; Stillmap's own images do not need it",
        "criu 4.1 or newer in the PATH, or named by STILLMAP_CRIU");
  }
  f.says = fmt::format("{} on Linux {}", *version, kernel);
  // The clock's data is two areas from 6.13 on. docs/criu.md
  if (two_numbers(kernel) >= std::pair(6, 13) && two_numbers(*version) < std::pair(4, 1)) {
    return f.judged(works::no,
                    f.says +
                        ": it supports kernels up to 6.12 (\"Unexpected rt vDSO area bounds\"); "
                        "Debian 12 has 3.17.1",
                    "criu 4.1 or newer");
  }
  if (::geteuid() == 0) return f;
  return f.judged(works::limited, f.says + ": only for root",
                  "start as root, or give criu CAP_CHECKPOINT_RESTORE");
}

finding criu_here() {
  utsname kernel = {};
  ::uname(&kernel);
  const char *const named = ::secure_getenv("STILLMAP_CRIU");
  std::optional<std::string> version;
  for (const std::string &program :
       {std::string(named != nullptr ? named : "criu"), std::string("/usr/sbin/criu")}) {
    const std::unique_ptr<FILE, int (*)(FILE *)> from(
        ::popen((shell_quoted(program) + " --version 2>/dev/null").c_str(), "r"), ::pclose);
    std::array<char, 256> line{};
    constexpr std::string_view start = "Version: ";
    if (from && std::fgets(line.data(), line.size(), from.get()) != nullptr &&
        std::string_view(line.data()).substr(0, start.size()) == start) {
      version = std::string(line.data() + start.size());
      while (!version->empty() && version->back() <= ' ') version->pop_back();
    }
    if (version || named != nullptr) break;
  }
  return criu(version, kernel.release);
}

}  // namespace stillmap::tool
