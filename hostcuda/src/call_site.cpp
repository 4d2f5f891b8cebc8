#include "hostcuda/src/call_site.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>
#include <unwind.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace hostcuda {
namespace {

struct span {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// The address range of this library. Frames inside it are omitted from call sites. Empty if the
// library is linked statically into the program.
const span &own_text() {
  static const span found = [] {
    struct search {
      std::uintptr_t inside;
      span result;
    } s{reinterpret_cast<std::uintptr_t>(&capture_call_site), {}};
    dl_iterate_phdr(
        [](dl_phdr_info *info, std::size_t, void *user) {
          auto &wanted = *static_cast<search *>(user);
          if (info->dlpi_name == nullptr || info->dlpi_name[0] == '\0') return 0;  // the program
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto &header = info->dlpi_phdr[i];
            if (header.p_type != PT_LOAD) continue;
            const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
            if (wanted.inside - begin < header.p_memsz) {
              wanted.result = {begin, begin + header.p_memsz};
              return 1;
            }
          }
          return 0;
        },
        &s);
    return s.result;
  }();
  return found;
}

// Cache of stack walks. Unwinding takes microseconds, and programs queue work from few places. Each
// thread keeps its last walks and the stack slots of the return addresses. If all slots still hold
// their addresses, a new walk would give the same result.
struct walk {
  static constexpr unsigned max_slots = 16;
  call_site site;
  void **slots[max_slots];
  void *values[max_slots];
  unsigned depth = 0;
  std::uintptr_t start = 0;  // stack address at which the walk started
  const span *own = nullptr;
};

_Unwind_Reason_Code on_frame(_Unwind_Context *frame, void *user) {
  auto &w = *static_cast<walk *>(user);
  const std::uintptr_t ip = _Unwind_GetIP(frame);
  if (ip == 0 || w.depth == walk::max_slots) return _URC_END_OF_STACK;
  w.slots[w.depth] = reinterpret_cast<void **>(_Unwind_GetCFA(frame)) - 1;
  w.values[w.depth] = reinterpret_cast<void *>(ip);
  ++w.depth;
  if (ip - w.own->begin < w.own->end - w.own->begin) return _URC_NO_REASON;
  w.site.frames[w.site.count++] = reinterpret_cast<void *>(ip);
  return w.site.count == call_site::max_frames ? _URC_END_OF_STACK : _URC_NO_REASON;
}

__attribute__((no_sanitize("address", "thread"))) bool still_holds(const walk &w) {
  for (unsigned i = 0; i < w.depth; ++i) {
    if (*w.slots[i] != w.values[i]) return false;
  }
  return true;
}

struct recent_walks {
  static constexpr unsigned size = 8;
  walk walks[size];
  unsigned next = 0;
};

std::string describe_frame(void *address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address) - 1;  // inside the call instruction
  Dl_info info{};
  char buffer[64];
  if (dladdr(reinterpret_cast<void *>(at), &info) == 0 || info.dli_fname == nullptr) {
    std::snprintf(buffer, sizeof buffer, "%p", address);
    return buffer;
  }
  std::string file = info.dli_fname;
  if (const auto slash = file.rfind('/'); slash != std::string::npos) file.erase(0, slash + 1);
  if (info.dli_sname != nullptr) {
    int status = 0;
    char *nice = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    std::string name = status == 0 && nice != nullptr ? nice : info.dli_sname;
    std::free(nice);
    if (name.size() > 80) name = name.substr(0, 77) + "...";
    std::snprintf(buffer, sizeof buffer, "+0x%zx",
                  at - reinterpret_cast<std::uintptr_t>(info.dli_saddr));
    return name + buffer + " (" + file + ")";
  }
  std::snprintf(buffer, sizeof buffer, "+0x%zx",
                at - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  return file + buffer;
}

}  // namespace

__attribute__((noinline)) call_site capture_call_site() {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
#if defined(__x86_64__)
  static thread_local recent_walks recent;
  for (const walk &w : recent.walks) {
    if (w.start == here && w.depth != 0 && still_holds(w)) return w.site;
  }
  walk &w = recent.walks[recent.next];
  w = walk{};
#else
  walk w;  // the return address may be in a register
#endif
  w.own = &own_text();
  w.start = here;
  _Unwind_Backtrace(on_frame, &w);
#if defined(__x86_64__)
  const call_site site = w.site;
  // Frame 0 is this function; its address is not read from a slot. A frame without a return
  // address at the place that the ABI defines (a signal frame) makes the walk uncacheable.
  if (w.depth < 2) {
    w.depth = 0;
  } else {
    for (unsigned i = 1; i < w.depth; ++i) {
      w.slots[i - 1] = w.slots[i];
      w.values[i - 1] = w.values[i];
    }
    --w.depth;
    if (!still_holds(w)) w.depth = 0;
  }
  if (w.depth != 0) recent.next = (recent.next + 1) % recent_walks::size;
  return site;
#else
  return w.site;
#endif
}

std::string describe(const call_site &site) {
  if (site.count == 0) return "unknown place";
  std::string text;
  for (unsigned i = 0; i < site.count; ++i) {
    if (i != 0) text += " < ";
    text += describe_frame(site.frames[i]);
  }
  return text;
}

}  // namespace hostcuda
