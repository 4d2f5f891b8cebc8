// dlsym, dlvsym, dlopen and dlmopen as the program calls them. They ask the next one first, and replace only what
// it found.
//
// The next function must see the program as its caller, because the meaning of RTLD_NEXT, RTLD_DEFAULT and of search
// paths depends on it. So each begins with a few instructions that ask a function below where to go on, and jump
// there with the arguments and the return address as they came.
#include <dlfcn.h>
#include <link.h>

#include <cstring>

#include "preload/functions/function_list.h"
#include "preload/lookup/bind_slots.h"
#include "preload/lookup/loaded_objects.h"
#include "preload/lookup/loader.h"

namespace stillmap::preload {
namespace {

// Where go_on_at is null: the value to return.
struct answer {
  void *value;
  void *go_on_at;
};

template <class Function>
answer go_on(Function *f) noexcept {
  return {nullptr, reinterpret_cast<void *>(f)};
}

bool may_be_listed(const char *name) noexcept {
  return name != nullptr &&
         ((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v'));
}

// The answer to a look-up of function f. `ask` asks the next dlsym or dlvsym with a handle.
template <class Ask>
answer look_up(function f, void *handle, void *caller, Ask ask) noexcept {
  const char *const symbol = symbol_of(f);
  void *found = nullptr;
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
    found = find_behind(handle == RTLD_NEXT ? caller : nullptr, symbol);
  } else {
    found = ask(handle);
    if (found == nullptr) return {nullptr, nullptr};
    // A handle of the whole program finds this library first.
    if (is_ours(found)) found = find_behind_us(symbol);
  }
  // Not behind this library, either: the loader says so in dlerror().
  if (found == nullptr) return {ask(RTLD_NEXT), nullptr};
  // A variable of that name is none of the driver's functions. And an object that has this function itself wraps
  // it: what it asks for is what it passes its calls on to.
  if (!is_code(found) || defines(caller, symbol)) return {found, nullptr};
  set_next(f, found);
  return {wrapper_of(f), nullptr};
}

// The object, of any namespace, in which an address lies.
const link_map *object_at(const void *address) noexcept {
  Dl_info unused;
  link_map *found = nullptr;
  if (::dladdr1(address, &unused, reinterpret_cast<void **>(&found), RTLD_DL_LINKMAP) == 0)
    return nullptr;
  return found;
}

}  // namespace

extern "C" answer stillmap_preload_dlsym(void *handle, const char *name, void *caller) noexcept {
  const auto next = next_dlsym.get();
  if (!may_be_listed(name) || is_ours(caller)) return go_on(next);
  const auto f = find_symbol(name);
  if (!f) return go_on(next);
  return look_up(*f, handle, caller, [&](void *h) { return next(h, name); });
}

extern "C" answer stillmap_preload_dlvsym(void *handle, const char *name, const char *version,
                                          void *caller) noexcept {
  const auto next = next_dlvsym.get();
  if (!may_be_listed(name) || is_ours(caller)) return go_on(next);
  const auto f = find_symbol(name);
  if (!f) return go_on(next);
  return look_up(*f, handle, caller, [&](void *h) { return next(h, name, version); });
}

extern "C" answer stillmap_preload_dlopen(const char *file, int flags, void *caller) noexcept {
  const auto next = next_dlopen.get();
  if (is_ours(caller)) return go_on(next);
  const bool elsewhere = !in_first_namespace(caller);
  if (!elsewhere && (flags & RTLD_DEEPBIND) == 0) return go_on(next);
  void *handle = nullptr;
  const link_map *const object = object_at(caller);
  Lmid_t name_space = LM_ID_BASE;
  if (object != nullptr) {
    ::dlinfo(const_cast<link_map *>(object), RTLD_DI_LMID, &name_space);
  }
  handle = elsewhere && next_dlmopen.get() != nullptr ? next_dlmopen.get()(name_space, file, flags)
                                                      : next(file, flags);
  if (handle == nullptr) return {nullptr, nullptr};
  if (elsewhere && object != nullptr) {
    bind_namespace_of(object);
  } else {
    bind_first_namespace();
  }
  return {handle, nullptr};
}

extern "C" answer stillmap_preload_dlmopen(long name_space, const char *file, int flags,
                                           void *caller) noexcept {
  const auto next = next_dlmopen.get();
  if (is_ours(caller)) return go_on(next);
  void *const handle = next(name_space, file, flags);
  link_map *object = nullptr;
  if (handle == nullptr || ::dlinfo(handle, RTLD_DI_LINKMAP, &object) != 0 || object == nullptr) {
    return {handle, nullptr};
  }
  if (name_space == LM_ID_BASE) {
    if ((flags & RTLD_DEEPBIND) != 0) bind_first_namespace();
  } else {
    bind_namespace_of(object);
  }
  return {handle, nullptr};
}

}  // namespace stillmap::preload

// The entries. Each keeps the arguments, asks, and returns the answer or goes on.
#if defined(__x86_64__)
#define STILLMAP_ENTRY(name, caller)                                                              \
  __asm__(                                                                                        \
      ".text\n.globl " #name "\n.type " #name ", @function\n" #name                               \
      ":\n  endbr64\n  pushq %rdi\n  pushq %rsi\n  pushq %rdx\n  movq 24(%rsp), %" caller         \
      "\n  call stillmap_preload_" #name                                                          \
      "\n  movq %rdx, %r11\n  popq %rdx\n  popq %rsi\n  popq %rdi\n  testq %r11, %r11\n  jz 1f\n" \
      "  jmp *%r11\n1:\n  ret\n.size " #name ", .-" #name "\n");
STILLMAP_ENTRY(dlsym, "rdx")
STILLMAP_ENTRY(dlvsym, "rcx")
STILLMAP_ENTRY(dlopen, "rdx")
STILLMAP_ENTRY(dlmopen, "rcx")
#elif defined(__aarch64__)
#define STILLMAP_ENTRY(name, caller)                                                            \
  __asm__(                                                                                      \
      ".text\n.globl " #name "\n.type " #name ", @function\n" #name                             \
      ":\n  stp x29, x30, [sp, #-48]!\n  mov x29, sp\n  stp x0, x1, [sp, #16]\n  str x2, [sp, " \
      "#32]\n"                                                                                  \
      "  mov " caller ", x30\n  bl stillmap_preload_" #name                                     \
      "\n  cbz x1, 1f\n  mov x16, x1\n  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"           \
      "  ldp x29, x30, [sp], #48\n  br x16\n1:\n  ldp x29, x30, [sp], #48\n  ret\n.size " #name \
      ", .-" #name "\n");
STILLMAP_ENTRY(dlsym, "x2")
STILLMAP_ENTRY(dlvsym, "x3")
STILLMAP_ENTRY(dlopen, "x2")
STILLMAP_ENTRY(dlmopen, "x3")
#endif
