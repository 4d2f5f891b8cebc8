#include "call_site.h"

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

// The address range this library (or, linked statically, this program) is loaded at. A frame
// inside a shared library of ours is an implementation detail; in a static program nothing is.
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

struct walk {
  call_site site;
  unsigned depth = 0;
  const span *own;
};

_Unwind_Reason_Code on_frame(_Unwind_Context *frame, void *user) {
  auto &w = *static_cast<walk *>(user);
  const std::uintptr_t ip = _Unwind_GetIP(frame);
  if (ip == 0 || ++w.depth > 24) return _URC_END_OF_STACK;
  if (ip - w.own->begin < w.own->end - w.own->begin) return _URC_NO_REASON;
  w.site.frames[w.site.count++] = reinterpret_cast<void *>(ip);
  return w.site.count == call_site::max_frames ? _URC_END_OF_STACK : _URC_NO_REASON;
}

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

call_site capture_call_site() {
  walk w;
  w.own = &own_text();
  _Unwind_Backtrace(on_frame, &w);
  return w.site;
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
