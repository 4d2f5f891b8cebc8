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

// The object, of any namespace, in which an address lies.
const link_map *object_at(const void *address) noexcept {
  Dl_info unused;
  link_map *found = nullptr;
  if (::dladdr1(address, &unused, reinterpret_cast<void **>(&found), RTLD_DL_LINKMAP) == 0)
    return nullptr;
  return found;
}

template <class Function>
answer go_on(Function *f) noexcept {
  return {nullptr, reinterpret_cast<void *>(f)};
}

bool may_be_listed(const char *name) noexcept {
  return name != nullptr &&
         ((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v'));
}

// Finds a function behind this library as the loader does, and leaves an error in dlerror() where there is none.
// What a program has loaded RTLD_LOCAL is not in its own scope.
template <class Ask>
void *find_in_scope(const char *symbol, void *handle, const void *caller, Ask ask) noexcept {
  void *const found = find_behind(handle == RTLD_NEXT ? caller : nullptr, symbol);
  if (found != nullptr && is_before_us(found)) return found;
  const bool global_only = is_in_program(caller) || (handle == RTLD_NEXT && is_before_us(caller));
  if (found == nullptr || global_only) {
    void *const theirs = ask(RTLD_NEXT);
    if (theirs == nullptr) return nullptr;
  }
  return found;
}

// The answer to a look-up of function f. `ask` asks the next dlsym or dlvsym with a handle.
template <class Ask>
answer look_up(function f, void *handle, void *caller, Ask ask) noexcept {
  const char *const symbol = symbol_of(f);
  void *found = nullptr;
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
    found = find_in_scope(symbol, handle, caller, ask);
  } else {
    found = ask(handle);
    // A handle of the whole program finds this library first: not behind it, either, and the loader says so.
    if (found != nullptr && is_ours(found)) found = ask(RTLD_NEXT);
  }
  if (found == nullptr) return {nullptr, nullptr};
  // One driver for all namespaces: that of the first, where it has one.
  if (!in_first_namespace(found)) {
    const link_map *const object = object_at(found);
    void *const first = object != nullptr && elf_object(*object).function(symbol) == found
                            ? find_behind_us(symbol)
                            : nullptr;
    if (first == nullptr) return {found, nullptr};
    found = first;
  }
  // A variable of that name is none of the driver's functions. An interposer before this library comes first, and
  // passes its calls on to here.
  if (!is_code(found) || is_before_us(found) || wraps_behind_us(caller, symbol))
    return {found, nullptr};
  set_next(f, found);
  // An interposer of dlsym asks for others, whoever they are: perhaps for the one that the wrapper passes on to.
  if (next_of(f) != found && is_before_us(caller) && !is_in_program(caller))
    return {found, nullptr};
  return {wrapper_of(f), nullptr};
}

// Those that this file has, for a program that looks them up before it uses them.
void *loader_function_of_ours(const char *name) noexcept {
  if (name == nullptr || name[0] != 'd' || name[1] != 'l') return nullptr;
  if (std::strcmp(name, "dlsym") == 0) return reinterpret_cast<void *>(&::dlsym);
  if (std::strcmp(name, "dlvsym") == 0) return reinterpret_cast<void *>(&::dlvsym);
  if (std::strcmp(name, "dlopen") == 0) return reinterpret_cast<void *>(&::dlopen);
  if (std::strcmp(name, "dlmopen") == 0) return reinterpret_cast<void *>(&::dlmopen);
  return nullptr;
}

// What is loaded before main(); what is loaded later: at the next dlopen.
[[gnu::constructor]] void unbind_first_variables() {
  unbind_variables();
}

}  // namespace

extern "C" answer stillmap_preload_dlsym(void *handle, const char *name, void *caller) noexcept {
  const auto next = next_dlsym.get();
  if (void *const ours = loader_function_of_ours(name)) {
    // Without a version and with a scope to search, the loader finds this library by itself, where that comes first.
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || is_ours(caller) ||
        wraps_behind_us(caller, name))
      return go_on(next);
    return {next(handle, name) != nullptr ? ours : nullptr, nullptr};
  }
  if (!may_be_listed(name) || is_ours(caller)) return go_on(next);
  const auto f = find_symbol(name);
  if (!f) return go_on(next);
  return look_up(*f, handle, caller, [&](void *h) { return next(h, name); });
}

extern "C" answer stillmap_preload_dlvsym(void *handle, const char *name, const char *version,
                                          void *caller) noexcept {
  const auto next = next_dlvsym.get();
  if (void *const ours = loader_function_of_ours(name)) {
    const bool scope = handle == RTLD_DEFAULT || handle == RTLD_NEXT;
    if (is_ours(caller) || wraps_behind_us(caller, name) ||
        (handle == RTLD_NEXT && !is_before_us(caller)))
      return go_on(next);
    return {next(scope ? RTLD_NEXT : handle, name, version) != nullptr ? ours : nullptr, nullptr};
  }
  if (!may_be_listed(name) || is_ours(caller)) return go_on(next);
  const auto f = find_symbol(name);
  if (!f) return go_on(next);
  return look_up(*f, handle, caller, [&](void *h) { return next(h, name, version); });
}

extern "C" answer stillmap_preload_dlopen(const char *file, int flags, void *caller) noexcept {
  const auto next = next_dlopen.get();
  // A loader in the way of cuew opens the driver before it uses its variables.
  unbind_variables();
  if (is_ours(caller)) return go_on(next);
  const bool elsewhere = !in_first_namespace(caller);
  if (!elsewhere && (flags & RTLD_DEEPBIND) == 0) return go_on(next);
  void *handle = nullptr;
  const link_map *const object = object_at(caller);
  Lmid_t name_space = LM_ID_BASE;
  if (object != nullptr) {
    ::dlinfo(const_cast<link_map *>(object), RTLD_DI_LMID, &name_space);
  }
  const std::size_t known = objects_here();
  handle = elsewhere && next_dlmopen.get() != nullptr ? next_dlmopen.get()(name_space, file, flags)
                                                      : next(file, flags);
  if (handle == nullptr) return {nullptr, nullptr};
  if (elsewhere && object != nullptr) {
    bind_namespace_of(object);
  } else {
    bind_new_objects(known);
  }
  return {handle, nullptr};
}

extern "C" answer stillmap_preload_dlmopen(long name_space, const char *file, int flags,
                                           void *caller) noexcept {
  const auto next = next_dlmopen.get();
  if (is_ours(caller)) return go_on(next);
  const std::size_t known = objects_here();
  void *const handle = next(name_space, file, flags);
  link_map *object = nullptr;
  if (handle == nullptr || ::dlinfo(handle, RTLD_DI_LINKMAP, &object) != 0 || object == nullptr) {
    return {handle, nullptr};
  }
  if (name_space == LM_ID_BASE) {
    if ((flags & RTLD_DEEPBIND) != 0) bind_new_objects(known);
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
