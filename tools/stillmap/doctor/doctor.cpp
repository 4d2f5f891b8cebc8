// stillmap doctor: reports what this driver, its devices and this machine support; for what is
// missing, the consequence and the replacement.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <vector>

#include "stillmap/vmm/internal/try.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/common/json.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/terminal.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/doctor/checkpoint.h"

namespace stillmap::tool {
namespace {

struct fact {
  const char *key;
  std::string name;
  bool good;         // supported, or merely a fact
  std::string says;  // the fact, or the consequence of its absence and the fix
};

struct device_report {
  int ordinal = 0;
  std::string trouble;  // why the device could not be opened; then the rest is empty
  std::string name;
  std::uint64_t total = 0, free = 0;
  capabilities can;
  std::vector<fact> facts;
  std::vector<finding> checkpoint;
};

std::string list(const std::vector<int> &numbers) {
  std::string out;
  for (const int n : numbers) out += fmt::format("{}{}", out.empty() ? "" : ", ", n);
  return out;
}

fact vmm_fact(const driver &drv, const capabilities &can) {
  fact f{"vmm", "grow in place", can.vmm, ""};
  if (can.vmm) {
    f.says = fmt::format(
        "yes: addresses and memory are separate, in pages of {}{}", format_bytes(can.page_bytes),
        can.recommended_page_bytes > can.page_bytes
            ? fmt::format(" ({} recommended)", format_bytes(can.recommended_page_bytes))
            : "");
  } else if (!drv.has(driver_call::MemCreate)) {
    f.says = fmt::format(
        "no: this driver (CUDA {}) has no virtual memory management, which came with CUDA 10.2. "
        "Buffers work but grow by allocating and copying, and their address moves. Fix: a newer "
        "driver.",
        version_text(drv.version()));
  } else {
    f.says =
        "no: the device refuses virtual memory management (many vGPU profiles do). Buffers work "
        "but "
        "grow by allocating and copying, and their address moves. Fix: pass the whole GPU through, "
        "or ask for a vGPU type with unified memory enabled.";
  }
  return f;
}

void sharing_facts(const capabilities &can, std::vector<fact> &out) {
  const bool vmm = can.vmm;
  constexpr const char *needs = "no: needs virtual memory management.";
  out.push_back(
      {"posix_fd_export", "share with processes", can.posix_fd_export,
       can.posix_fd_export
           ? "yes: pages made exportable (handle_type::posix_fd) go to other processes as "
             "file descriptors, at any address there"
       : vmm ? "no: pages cannot be exported as file descriptors. Other processes need a "
               "copy through the host."
             : needs});
  out.push_back({"fabric_export", "share with machines", can.fabric_export,
                 can.fabric_export ? "yes: fabric handles work (IMEX is up)"
                 : vmm ? "no: fabric handles do not work. They need NVLink between machines and a "
                         "running IMEX service; without them, use RDMA or the network."
                       : needs});
  out.push_back({"legacy_ipc", "legacy IPC", !vmm,
                 vmm ? "no: cuIpcGetMemHandle and cudaIpcGetMemHandle never work on memory that "
                       "grows in place, on any driver. Libraries that insist on it (older NCCL and "
                       "MPI paths, torch tensors sent between processes) need file descriptors "
                       "instead, or a cuMemAlloc buffer (buffer_options::force_copying)."
                     : "yes: all memory here is from cuMemAlloc"});
  out.push_back({"rdma", "network cards (RDMA)", can.rdma,
                 can.rdma
                     ? "yes: pages made with rdma = true were mapped; whether a card takes them "
                       "depends on nvidia-peermem or dma-buf. Registrations must follow the "
                       "backing generation."
                 : vmm ? std::string(can.wsl ? "no: WSL 2 advertises it, but such a page could not "
                                               "be used. Stage through pinned host memory."
                                             : "no: such a page could not be mapped. Stage through "
                                               "pinned host memory.")
                       : needs});
}

void memory_facts(const device &d, std::vector<fact> &out) {
  const capabilities &can = d.capabilities();
  constexpr const char *needs = "no: needs virtual memory management.";
  out.push_back({"host_numa", "pages on the host", can.host_numa,
                 can.host_numa ? "yes: a buffer can keep pages in host memory at the same addresses"
                 : can.vmm     ? "no: host pages could not be made or mapped (older drivers lack "
                                 "them; containers need SYS_NICE). Pages stay on the device; use "
                                 "pinned memory for what must be on the host."
                               : needs});
  out.push_back({"memory_pools", "stream-ordered pools", can.memory_pools,
                 can.memory_pools
                     ? "yes: cuMemAllocAsync works"
                     : "no: cuMemAllocAsync is missing (CUDA 11.2) or refused. Stillmap "
                       "does not need it; benchmarks leave it out."});
  out.push_back({"peers", "other devices", true,
                 can.peers.empty() ? "none can reach this device's memory directly"
                                   : fmt::format("device {} can read and write this one's memory",
                                                 list(can.peers))});
  if (!can.vmm) return;
  const bool roomy = can.largest_reservation >= d.total_memory().bytes();
  out.push_back(
      {"largest_reservation", "largest reservation", roomy,
       roomy ? fmt::format("{} of addresses at once: at least what the device has in memory, so "
                           "a buffer never has to move",
                           format_bytes(can.largest_reservation))
             : fmt::format("only {} of addresses at once, less than the device's {}{}. A "
                           "buffer that outgrows its reservation continues behind it or, "
                           "where that is taken, at a new address without a copy.",
                           format_bytes(can.largest_reservation),
                           format_bytes(d.total_memory().bytes()),
                           can.wsl ? " (WSL 2 is known for it)" : "")});
  out.push_back(
      {"mapping_ceiling", "mapping ceiling", true,
       fmt::format("{} mappings, so {} in pages of {}; larger pages raise it "
                   "(page_pool_options::page_bytes)",
                   format_count(can.mapping_ceiling),
                   format_bytes(static_cast<std::uint64_t>(can.mapping_ceiling) * can.page_bytes),
                   format_bytes(can.page_bytes))});
}

device_report examine(driver &drv, int ordinal) {
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
  r.facts.push_back(vmm_fact(drv, r.can));
  sharing_facts(r.can, r.facts);
  memory_facts(*d, r.facts);
  if (r.can.wsl) {
    r.facts.push_back({"wsl", "WSL 2", true,
                       "this is Linux on Windows: it uses the Windows driver, pinned memory is "
                       "limited and NVML is partial"});
  }
  r.checkpoint = suspend_findings(*d);
  r.checkpoint.push_back(device_digests(*d));
  const bool digests = r.checkpoint.back().does == works::yes;
  r.checkpoint.push_back(handoff(r.can));
  r.checkpoint.push_back(migration_pages(r.can, digests));
  return r;
}

// Limits of this machine that matter for device memory, or for hostcuda.
std::vector<fact> host_facts(const driver &drv) {
  std::vector<fact> out;
  const auto left = available_host_memory();
  out.push_back({"host_memory", "free host memory", true, left ? format_bytes(*left) : "unknown"});
  rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    const bool few = files.rlim_cur != RLIM_INFINITY && files.rlim_cur < 4096;
    out.push_back({"open_files", "open files", !few,
                   files.rlim_cur == RLIM_INFINITY
                       ? "unlimited"
                       : fmt::format("{} per process{}", format_count(files.rlim_cur),
                                     few ? "; each exported page is one while it travels. Fix: "
                                           "ulimit -n 65536"
                                         : "")});
  }
  if (drv.is_hostcuda()) {
    std::ifstream in("/proc/sys/vm/max_map_count");
    std::uint64_t maps = 0;
    if (in >> maps) {
      const bool few = maps < 262144;
      out.push_back(
          {"max_map_count", "memory maps", maps >= 65530,
           fmt::format(
               "{} per process (vm.max_map_count): hostcuda needs about one for each page "
               "with memory behind it, so {} of device memory{}",
               format_count(maps), format_bytes(maps * (std::uint64_t{2} << 20)),
               few ? "; to go further: sysctl vm.max_map_count=1048576, or HOSTCUDA=unbacked"
                   : "")});
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

void print(const std::vector<fact> &facts, const terminal &t) {
  for (const fact &f : facts) print_row(f.good ? works::yes : works::no, f.name, f.says, t);
}

const char *name_of(works w) {
  return w == works::yes ? "works" : w == works::limited ? "limited" : "does not work";
}

void print(const std::vector<finding> &findings, const terminal &t) {
  for (const finding &f : findings) {
    const std::string text =
        fmt::format("{}: {}{}{}", name_of(f.does), f.says, f.fix.empty() ? "" : ". Fix: ", f.fix);
    print_row(f.does, f.name, text, t);
  }
}

void write(const std::vector<finding> &findings, json_writer &json) {
  json.begin_array("checkpoint");
  for (const finding &f : findings) {
    json.begin_object();
    json.field("key", f.key).field("works", f.does == works::yes).field("state", name_of(f.does));
    json.field("says", f.says).field("fix", f.fix);
    json.end();
  }
  json.end();
}

void write(const std::vector<fact> &facts, json_writer &json) {
  json.begin_array("findings");
  for (const fact &f : facts) {
    json.begin_object();
    json.field("key", f.key).field("good", f.good).field("says", f.says);
    json.end();
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
  json.begin_object();
  json.field("ordinal", r.ordinal).field("name", r.name);
  if (!r.trouble.empty()) {
    json.field("trouble", r.trouble).end();
    return;
  }
  json.field("total_bytes", r.total).field("free_bytes", r.free);
  json.field("vmm", r.can.vmm);
  json.field("page_bytes", static_cast<std::uint64_t>(r.can.page_bytes));
  json.field("largest_reservation", static_cast<std::uint64_t>(r.can.largest_reservation));
  json.field("mapping_ceiling", static_cast<std::uint64_t>(r.can.mapping_ceiling));
  write(r.facts, json);
  write(r.checkpoint, json);
  json.end();
}

struct doctor_options {
  std::string driver;
  bool json = false;
};

outcome<exit_status> examine_all(const doctor_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(auto chosen, choose_driver(o.driver));
  driver &drv = *chosen;
  const auto count = drv.device_count();
  if (!count) return fail(count.error(), drv.path());
  std::vector<device_report> devices;
  for (int i = 0; i < *count; ++i) devices.push_back(examine(drv, i));
  const auto host = host_facts(drv);
  const std::vector<finding> checkpoint{io_uring_here(), direct_io_here(), migration_tls(),
                                        driver_checkpoint(drv), criu_here()};
  const std::string verdict = conclusion(devices);
  bool usable = false;
  for (const device_report &r : devices) usable = usable || r.trouble.empty();

  if (o.json) {
    json_writer json;
    json.begin_object().field("usable", usable).field("conclusion", verdict);
    json.begin_object("driver").field("path", drv.path()).field("version", drv.version());
    json.field("hostcuda", drv.is_hostcuda()).end();
    json.begin_array("devices");
    for (const device_report &r : devices) write_device(r, json);
    json.end();
    json.begin_object("host");
    write(host, json);
    write(checkpoint, json);
    json.end().end();
    fmt::print("{}", json.text());
    return usable ? exit_ok : exit_not_found;
  }
  const terminal t = terminal_of(stdout);
  fmt::print("Driver: {}\n  {}, CUDA {}\n", drv.path(),
             drv.is_hostcuda() ? "hostcuda, a CUDA driver on host memory (no GPU is involved)"
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
    print(r.facts, t);
    print(r.checkpoint, t);
  }
  fmt::print("\nThis machine\n");
  print(host, t);
  print(checkpoint, t);
  fmt::print("\n{}\n", verdict);
  return usable ? exit_ok : exit_not_found;
}

}  // namespace

void add_doctor_command(command &root) {
  const auto o = std::make_shared<doctor_options>();
  command &c = root.add("doctor",
                        "Reports what this driver, its devices and this machine support, by trying "
                        "it; for what is missing, the consequence and the replacement.");
  add_driver_option(c, o->driver);
  c.json(o->json);
  c.run = [o] { return examine_all(*o); };
}

}  // namespace stillmap::tool
