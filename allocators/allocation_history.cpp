#include "stillmap/allocators/allocation_history.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <memory>

namespace stillmap {

const char *name_of(history_action action) {
  constexpr const char *names[history_actions] = {// in the order of history_action
                                                  "allocate", "free_requested", "free_completed",
                                                  "page_map", "page_move",      "page_unmap",
                                                  "reserve",  "out_of_memory",  "snapshot"};
  return names[static_cast<std::size_t>(action)];
}

stack_frame describe_frame(const void *return_address) {
  stack_frame out;
  // The call lies before the return address, which may be the first address of the next function.
  const auto at = reinterpret_cast<std::uintptr_t>(return_address);
  if (at == 0) return out;
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void *>(at - 1), &found) == 0) {
    out.offset = at;
    return out;
  }
  if (found.dli_fname != nullptr) out.module = found.dli_fname;
  const void *const base = found.dli_sname != nullptr ? found.dli_saddr : found.dli_fbase;
  out.offset = at - reinterpret_cast<std::uintptr_t>(base);
  if (found.dli_sname == nullptr) return out;
  int outcome = 0;
  const std::unique_ptr<char, void (*)(void *)> plain(
      abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &outcome), &std::free);
  out.function = outcome == 0 && plain != nullptr ? plain.get() : found.dli_sname;
  return out;
}

}  // namespace stillmap
