// stillmap doctor: reports what this driver, its devices and this machine support; for what is
// missing, the consequence and the replacement.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/memory_limits.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/terminal.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/doctor/checkpoint.h"
#include "tools/stillmap/machine/control_group.h"
#include "tools/stillmap/machine/device_usage.h"

namespace stillmap::tool {
namespace {

// A feature of a device, or a limit of the machine, that is there or not.
finding fact(const char *key, const char *name, bool good, std::string says) {
  return {key, name, good ? works::yes : works::no, std::move(says)};
}

struct device_report {
  int ordinal = 0;
  std::string trouble;  // why the device could not be opened; then the rest is empty
  std::string name;
  std::uint64_t total = 0, free = 0;
  capabilities can;
  std::vector<finding> facts;
  std::vector<finding> checkpoint;
};

std::string vmm_text(const driver &drv, const capabilities &can) {
  if (can.vmm) {
    return fmt::format(
        "yes: addresses and memory are separate, in pages of {}{}", format_bytes(can.page_bytes),
        can.recommended_page_bytes > can.page_bytes
            ? fmt::format(" ({} recommended)", format_bytes(can.recommended_page_bytes))
            : "");
  }
  if (!drv.has(driver_call::MemCreate)) {
    return fmt::format(
        "no: this driver (CUDA {}) has no virtual memory management, which came with CUDA 10.2. "
        "Buffers work but grow by allocating and copying, and their address moves. Fix: a newer "
        "driver.",
        version_text(drv.version()));
  }
  return "no: the device refuses virtual memory management (many vGPU profiles do). Buffers work "
         "but grow by allocating and copying, and their address moves. Fix: pass the whole GPU "
         "through, or ask for a vGPU type with unified memory enabled.";
}

// What the kernel has; else what the driver has, which NVML says (nullptr: there is none).
std::optional<finding> limits_of(const device &d, const nvml *gpus) {
  constexpr const char *key = "memory_limits", *name = "limits of the system";
  if (const auto l = memory_limits_of(d); l && l->any()) {
    return fact(key, name, true,
                text_of(*l, "dmem.max", "dmem.min") + ". Stillmap's allocators keep to it.");
  }
  const std::string group = gpus != nullptr ? own_control_group() : "";
  if (group.empty()) return std::nullopt;
  const memory_limits l = gpus->limits_of(uuid_text(d.uuid()), group);
  if (!l.any()) return std::nullopt;
  return fact(
      key, name, true,
      text_of(l, "NVML", "NVML") +
          ". `stillmap run` asks NVML for its program, which keeps to it. Others do not: the "
          "driver refuses what is beyond, as a full device.");
}

std::vector<finding> device_facts(const driver &drv, const device &d, const nvml *gpus) {
  const capabilities &can = d.capabilities();
  const auto with_vmm = [&](const char *key, const char *name, bool good, const char *yes,
                            const char *no) {
    return fact(key, name, good,
                good      ? yes
                : can.vmm ? no
                          : "no: needs virtual memory management.");
  };
  std::vector<finding> out{
      fact("vmm", "grow in place", can.vmm, vmm_text(drv, can)),
      with_vmm("posix_fd_export", "share with processes", can.posix_fd_export,
               "yes: pages made exportable (handle_type::posix_fd) go to other processes as file "
               "descriptors, at any address there",
               "no: pages cannot be exported as file descriptors. Other processes need a copy "
               "through the host."),
      with_vmm("fabric_export", "share with machines", can.fabric_export,
               "yes: fabric handles work (IMEX is up)",
               "no: fabric handles do not work. They need NVLink between machines and a running "
               "IMEX service; without them, use RDMA or the network."),
      fact("legacy_ipc", "legacy IPC", !can.vmm,
           can.vmm ? "no: cuIpcGetMemHandle and cudaIpcGetMemHandle never work on memory that "
                     "grows in place, on any driver. Libraries that insist on it (older NCCL and "
                     "MPI paths, torch tensors sent between processes) need file descriptors "
                     "instead, or a cuMemAlloc buffer (buffer_options::force_copying)."
                   : "yes: all memory here is from cuMemAlloc"),
      with_vmm("rdma", "network cards (RDMA)", can.rdma,
               "yes: pages made with rdma = true were mapped; whether a card takes them depends on "
               "nvidia-peermem or dma-buf. Registrations must follow the backing generation.",
               can.wsl ? "no: WSL 2 advertises it, but such a page could not be used. Stage "
                         "through pinned host memory."
                       : "no: such a page could not be mapped. Stage through pinned host memory."),
      with_vmm(
          "host_numa", "pages on the host", can.host_numa,
          "yes: a buffer can keep pages in host memory at the same addresses",
          "no: host pages could not be made or mapped (older drivers lack them; containers need "
          "SYS_NICE). Pages stay on the device; use pinned memory for what must be on the host."),
      fact("memory_pools", "stream-ordered pools", can.memory_pools,
           can.memory_pools ? "yes: cuMemAllocAsync works"
                            : "no: cuMemAllocAsync is missing (CUDA 11.2) or refused. Stillmap "
                              "does not need it; benchmarks leave it out."),
      fact("peers", "other devices", true,
           can.peers.empty() ? "none can reach this device's memory directly"
                             : fmt::format("device {} can read and write this one's memory",
                                           fmt::join(can.peers, ", "))),
  };
  if (can.vmm) {
    const std::uint64_t reservation = can.largest_reservation, memory = d.total_memory().bytes();
    out.push_back(
        fact("largest_reservation", "largest reservation", reservation >= memory,
             reservation >= memory
                 ? fmt::format("{} of addresses at once: at least what the device has in memory, "
                               "so a buffer never has to move",
                               format_bytes(reservation))
                 : fmt::format("only {} of addresses at once, less than the device's {}{}. A "
                               "buffer that outgrows its reservation continues behind it or, where "
                               "that is taken, at a new address without a copy.",
                               format_bytes(reservation), format_bytes(memory),
                               can.wsl ? " (WSL 2 is known for it)" : "")));
    const std::uint64_t mappings = can.mapping_ceiling;
    out.push_back(fact("mapping_ceiling", "mapping ceiling", true,
                       fmt::format("{} mappings, so {} in pages of {}; larger pages raise it "
                                   "(page_pool_options::page_bytes)",
                                   format_count(mappings), format_bytes(mappings * can.page_bytes),
                                   format_bytes(can.page_bytes))));
  }
  if (auto limits = limits_of(d, gpus)) out.push_back(std::move(*limits));
  if (can.integrated) {
    out.push_back(fact("integrated", "integrated", true,
                       "this device's memory is the host's: what is moved to host memory frees "
                       "nothing"));
  }
  if (can.wsl) {
    out.push_back(fact("wsl", "WSL 2", true,
                       "this is Linux on Windows: it uses the Windows driver, pinned memory is "
                       "limited and NVML is partial"));
  }
  return out;
}

device_report examine(driver &drv, int ordinal, const nvml *gpus) {
  device_report r;
  r.ordinal = ordinal;
  const auto d = device::open(drv, ordinal);
  if (!d) {
    r.trouble = d.error().message();
    if (const auto name = drv.device_name(ordinal)) r.name = *name;
    return r;
  }
  r.name = d->name();
  r.total = d->total_memory().bytes();
  if (const auto m = d->memory()) r.free = m->free.bytes();
  r.can = d->capabilities();
  r.facts = device_facts(drv, *d, gpus);
  r.checkpoint = suspend_findings(*d);
  r.checkpoint.push_back(device_digests(*d));
  const bool digests = r.checkpoint.back().does == works::yes;
  r.checkpoint.push_back(handoff(r.can));
  r.checkpoint.push_back(migration_pages(r.can, digests));
  return r;
}

// Limits of this machine that matter for device memory, or for hostcuda.
std::vector<finding> host_facts(const driver &drv) {
  std::vector<finding> out;
  const checkpoint::host_room left = checkpoint::available_host_memory();
  out.push_back(fact("host_memory", "free host memory", true,
                     left.bytes == UINT64_MAX
                         ? "unknown"
                         : fmt::format("{} ({})", format_bytes(left.bytes), left.limit)));
  rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    const bool few = files.rlim_cur != RLIM_INFINITY && files.rlim_cur < 4096;
    out.push_back(fact(
        "open_files", "open files", !few,
        files.rlim_cur == RLIM_INFINITY
            ? "unlimited"
            : fmt::format("{} per process{}", format_count(files.rlim_cur),
                          few ? "; each exported page is one while it travels. Fix: ulimit -n 65536"
                              : "")));
  }
  if (drv.is_simulator()) {
    std::ifstream in("/proc/sys/vm/max_map_count");
    std::uint64_t maps = 0;
    if (in >> maps) {
      const bool few = maps < 262144;
      out.push_back(fact(
          "max_map_count", "memory maps", maps >= 65530,
          fmt::format("{} per process (vm.max_map_count): hostcuda needs about one for each page "
                      "with memory behind it, so {} of device memory{}",
                      format_count(maps), format_bytes(maps * (std::uint64_t{2} << 20)),
                      few ? "; to go further: sysctl vm.max_map_count=1048576, or HOSTCUDA=unbacked"
                          : "")));
    }
  }
  return out;
}

void print_row(works does, const std::string &name, const std::string &text, const terminal &t) {
  constexpr std::size_t indent = 27;
  const char *mark = does == works::yes ? "+" : does == works::limited ? "~" : "-";
  const char *colour = does == works::yes ? "32" : "33";
  const std::string drawn = t.colour ? fmt::format("\x1b[{}m{}\x1b[0m", colour, mark) : mark;
  fmt::print("  {} {:<23}{}\n", drawn, name, wrap(text, indent, static_cast<std::size_t>(t.width)));
}

const char *name_of_works(works w) {
  return w == works::yes ? "works" : w == works::limited ? "limited" : "does not work";
}

void print(const std::vector<finding> &facts, const std::vector<finding> &checkpoint,
           const terminal &t) {
  for (const finding &f : facts) print_row(f.does, f.name, f.says, t);
  for (const finding &f : checkpoint) {
    const std::string fix = f.fix.empty() ? "" : ". Fix: " + f.fix;
    print_row(f.does, f.name, fmt::format("{}: {}{}", name_of_works(f.does), f.says, fix), t);
  }
}

void write(const std::vector<finding> &facts, const std::vector<finding> &checkpoint,
           json_writer &json) {
  json.begin_array("findings");
  for (const finding &f : facts) {
    json.begin_object().field("key", f.key).field("good", f.does == works::yes);
    json.field("says", f.says).end();
  }
  json.end().begin_array("checkpoint");
  for (const finding &f : checkpoint) {
    json.begin_object().field("key", f.key).field("works", f.does == works::yes);
    json.field("state", name_of_works(f.does)).field("says", f.says).field("fix", f.fix).end();
  }
  json.end();
}

std::string conclusion(const std::vector<device_report> &devices) {
  std::size_t in_place = 0, open = 0;
  for (const device_report &r : devices) {
    if (!r.trouble.empty()) continue;
    ++open;
    if (r.can.vmm) ++in_place;
  }
  if (open == 0) return "Not usable: no device could be opened.";
  if (in_place == devices.size()) return "Usable: buffers grow in place and nothing is copied.";
  if (in_place == 0) return "Usable with the fallback: buffers work, but growing copies.";
  return fmt::format("Usable: buffers grow in place on {} of {} devices.", in_place,
                     devices.size());
}

void write_device(const device_report &r, json_writer &json) {
  json.begin_object().field("ordinal", r.ordinal).field("name", r.name);
  if (!r.trouble.empty()) {
    json.field("trouble", r.trouble).end();
    return;
  }
  json.field("total_bytes", r.total).field("free_bytes", r.free).field("vmm", r.can.vmm);
  json.field("page_bytes", r.can.page_bytes);
  json.field("largest_reservation", r.can.largest_reservation);
  json.field("mapping_ceiling", r.can.mapping_ceiling);
  write(r.facts, r.checkpoint, json);
  json.end();
}

struct doctor_options {
  std::string driver;
  bool json = false;
};

outcome<exit_status> examine_all(const doctor_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(auto chosen, choose_driver(o.driver));
  driver &drv = *chosen;
  STILLMAP_ASSIGN_OR_RETURN(const int count, about(drv.device_count(), drv.path()));
  const auto gpus = nvml::open();
  std::vector<device_report> devices;
  for (int i = 0; i < count; ++i) {
    devices.push_back(examine(drv, i, gpus ? gpus->get() : nullptr));
  }
  const auto host = host_facts(drv);
  const std::vector<finding> checkpoint{io_uring_here(), direct_io_here(), migration_tls(),
                                        driver_checkpoint(drv), criu_here()};
  const std::string verdict = conclusion(devices);
  const bool usable = std::any_of(devices.begin(), devices.end(),
                                  [](const device_report &r) { return r.trouble.empty(); });

  if (o.json) {
    json_writer json;
    json.begin_object().field("usable", usable).field("conclusion", verdict);
    json.begin_object("driver").field("path", drv.path()).field("version", drv.version());
    json.field("hostcuda", drv.is_simulator()).end();
    json.begin_array("devices");
    for (const device_report &r : devices) write_device(r, json);
    json.end().begin_object("host");
    write(host, checkpoint, json);
    json.end().end();
    fmt::print("{}", json.text());
    return usable ? exit_ok : exit_not_found;
  }
  const terminal t = terminal_of(stdout);
  fmt::print("Driver: {}\n  {}, CUDA {}\n", drv.path(),
             drv.is_simulator() ? "hostcuda, a CUDA driver on host memory (no GPU is involved)"
                                : "a CUDA driver",
             version_text(drv.version()));
  for (const device_report &r : devices) {
    fmt::print("\nDevice {}: {}\n", r.ordinal, r.name);
    if (!r.trouble.empty()) {
      fmt::print("  - {}\n",
                 wrap("cannot be used: " + r.trouble, 4, static_cast<std::size_t>(t.width)));
      continue;
    }
    fmt::print("  {} of memory, {} free\n", format_bytes(r.total), format_bytes(r.free));
    print(r.facts, r.checkpoint, t);
  }
  fmt::print("\nThis machine\n");
  print(host, checkpoint, t);
  fmt::print("\n{}\n", verdict);
  return usable ? exit_ok : exit_not_found;
}

}  // namespace

void add_doctor_command(command &root) {
  const auto [c, o] =
      root.add("doctor", examine_all,
               "Reports what this driver, its devices and this machine support, by trying it; for "
               "what is missing, the consequence and the replacement.");
  add_driver_option(c, o.driver);
  c.json(o.json);
}

}  // namespace stillmap::tool
