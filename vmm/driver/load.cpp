// Finds, opens and checks a driver library. An error names the step that failed; with STILLMAP_VERBOSE
// set, stderr lists every path that was tried.
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"
#include "stillmap/vmm/driver/calls.h"
#include "stillmap/vmm/driver/search_paths.h"

namespace stillmap {
namespace {

constexpr const char *not_opened =
    "no driver library could be opened: install an NVIDIA driver, or name " STILLMAP_SIMULATOR
    " by STILLMAP_DRIVER=host and " STILLMAP_SIMULATOR_VARIABLE
    "=path; STILLMAP_VERBOSE=1 shows every path that is tried";
constexpr const char *no_simulator =
    STILLMAP_SIMULATOR " was not found: " STILLMAP_SIMULATOR_VARIABLE "=path says where it is";
constexpr int oldest_version = 10000;  // CUDA 10.0: every fence needs cuStreamIsCapturing

tl::unexpected<error> unusable(const char *reason, std::uint64_t value = 0,
                               std::uint64_t limit = 0) {
  return make_error(errc::not_supported, reason, value, limit);
}

// Drivers by the handle of their library: two names of one file are one driver. Never destroyed,
// because static objects of the program may still hold devices.
struct loaded_drivers {
  stillmap::mutex mutex;  // held while a driver is opened, so that each is built once
  std::map<void *, driver *> by_library STILLMAP_GUARDED_BY(mutex);
};

loaded_drivers &loaded() {
  static undying<loaded_drivers> all;
  return *all;
}

// Finds symbols: by cuGetProcAddress at a version if the driver has it (11.3), else by the exported
// name.
class resolver {
 public:
  resolver(void *library, int version) : library_(library), version_(version) {
    if (version >= 11030) load(proc_address_, "cuGetProcAddress");
  }

  // `symbol` as the library exports it, in the signature of CUDA version `since`.
  template <class Function>
  void find(Function *&out, const char *symbol, int since) const {
    out = reinterpret_cast<Function *>(look_up(symbol, since));
  }

 private:
  // 1: the null stream is the legacy default stream, whatever this library was compiled with.
  static constexpr cuuint64_t legacy_stream = 1;

  template <class Function>
  void load(Function *&out, const char *symbol) {
    out = reinterpret_cast<Function *>(dlsym(library_, symbol));
  }

  void *look_up(const char *symbol, int since) const {
    if (since > version_) return nullptr;
    std::string base = symbol;
    if (base.ends_with("_v2")) base.resize(base.size() - 3);
    void *found = nullptr;
    CUresult r = CUDA_ERROR_NOT_FOUND;
    if (proc_address_ != nullptr) r = proc_address_(base.c_str(), &found, since, legacy_stream);
    // The signature of an exported name never changes.
    return r == CUDA_SUCCESS && found != nullptr ? found : dlsym(library_, symbol);
  }

  void *library_;
  int version_;
  CUresult(CUDAAPI *proc_address_)(const char *, void **, int, cuuint64_t) = nullptr;
};

void fill(driver_table &table, const resolver &find) {
#define STILLMAP_FIND(call, symbol, since, parameters) find.find(table.call, symbol, since);
  STILLMAP_DRIVER_SYMBOLS(STILLMAP_FIND)
#undef STILLMAP_FIND
  // Later versions with the same signature behave better: they return the UUID of a MIG instance
  // instead of its GPU's, and release a primary context that is still current.
  const auto prefer = [&](auto *&pointer, const char *symbol, int since) {
    auto *better = pointer;
    find.find(better, symbol, since);
    if (better != nullptr) pointer = better;
  };
  prefer(table.DeviceGetUuid, "cuDeviceGetUuid_v2", 11040);
  prefer(table.DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000);
}

// An error of finding nothing, with how to get a simulator, and where one was looked for.
error explained(const error &e, const std::vector<std::string> &tried) {
  std::string more = driver_search::simulator_advice();
  if (e.reason == no_simulator) {
    const char *before = more.empty() ? "tried " : "; tried ";
    for (const std::string &path : tried) {
      more += before + path;
      before = ", ";
    }
  }
  return more.empty() ? e : e.with({.cause = std::move(more)});
}

std::string path_of(void *library, const std::string &asked) {
  link_map *entry = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &entry) == 0 && entry != nullptr &&
      entry->l_name != nullptr && *entry->l_name != '\0') {
    return entry->l_name;
  }
  return asked;
}

bool verbose() {
  return ::secure_getenv("STILLMAP_VERBOSE") != nullptr;
}

void say(const std::string &path, const char *what) {
  if (verbose()) std::fprintf(stderr, "stillmap: driver %s: %s\n", path.c_str(), what);
}

// Opens the driver at `path`.
result<driver *> open_locked(loaded_drivers &all, const std::string &path,
                             bool skip_known_simulator) STILLMAP_REQUIRES(all.mutex) {
  decltype(all.by_library) one{{nullptr, nullptr}};
  auto entered = one.extract(one.begin());
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char *why = dlerror();
    say(path, why != nullptr ? why : "cannot be opened");
    return unusable(not_opened);
  }
  if (const auto known = all.by_library.find(library); known != all.by_library.end()) {
    dlclose(library);  // the count of the first opening stays
    // For a bare name, dlopen() returns any library with that SONAME, also a loaded simulator.
    if (skip_known_simulator && known->second->is_simulator()) {
      say(path, "is the simulator that was loaded before; looking further");
      return unusable(not_opened);
    }
    return known->second;
  }
  // After an error the library stays open: closing a libcuda that has begun to initialise may be
  // unsafe.
  result<driver *> built = driver_access::build(library, path);
  if (!built) {
    if (verbose()) say(path, built.error().message().c_str());
    return built;
  }
  say(path, "loaded");
  entered.key() = library;
  entered.mapped() = *built;
  all.by_library.insert(std::move(entered));
  return built;
}

}  // namespace

result<driver *> driver_access::build(void *library, const std::string &path) {
  CUresult(CUDAAPI * get_version)(int *) = nullptr;
  get_version = reinterpret_cast<decltype(get_version)>(dlsym(library, "cuDriverGetVersion"));
  if (get_version == nullptr) return unusable("not a CUDA driver: cuDriverGetVersion is missing");
  int version = 0;
  if (const CUresult r = get_version(&version); r != CUDA_SUCCESS) {
    return unusable(describe_cuda_error(r).name);  // the toolkit's stub library
  }
  if (version <= 0) return unusable("the driver does not know its own version");
  if (version < oldest_version) {
    return unusable("the driver is older than CUDA 10.0", static_cast<std::uint64_t>(version),
                    oldest_version);
  }

  std::unique_ptr<driver> made(new driver);
  made->path_ = path_of(library, path);
  made->version_ = version;
  made->library_ = library;
  made->simulator_ = made->simulator_function("reset") != nullptr;
  auto table = std::make_unique<driver_table>();
  fill(*table, resolver(library, version));
  made->table_ = {table.release(), [](driver_table *t) { delete t; }};

  if (const status s = made->initialise(); !s) {
    return tl::unexpected<error>(error{make_error_code(errc::not_supported), s.error().operation,
                                       s.error().code.category() == cuda_category()
                                           ? describe_cuda_error(s.error().code.value()).name
                                           : s.error().reason,
                                       0, 0});
  }
  return made.release();
}

result<driver *> driver::load(std::string_view which) {
  return with_host_memory("driver::load", [&]() -> result<driver *> {
    const bool by_system = which.empty() || which == "cuda";
    const std::vector<std::string> candidates = by_system ? driver_search::system_candidates()
                                                : which == "host"
                                                    ? driver_search::simulator_candidates()
                                                    : std::vector<std::string>{std::string(which)};
    // dlopen() answers a bare name with any library of that SONAME that is open already.
    const bool skip_known_simulator = by_system || which == driver_search::soname;
    loaded_drivers &all = loaded();
    const lock_guard lock(all.mutex);
    result<driver *> outcome = unusable(which == "host" ? no_simulator : not_opened);
    for (const std::string &path : candidates) {
      result<driver *> opened = open_locked(all, path, skip_known_simulator);
      if (opened) return opened;
      // The error of a library that was opened is more useful than that of an absent one.
      if (opened.error().reason != not_opened) outcome = opened;
    }
    if (!by_system && which != "host") return outcome;
    return tl::unexpected<error>(explained(outcome.error(), candidates));
  });
}

result<driver *> driver::get() {
  static std::atomic<driver *> chosen{nullptr};
  if (driver *d = chosen.load(std::memory_order_acquire)) return d;
  const operation_scope scope("driver::get");
  const char *which = ::secure_getenv("STILLMAP_DRIVER");
  result<driver *> loaded_now = load(which != nullptr ? which : "cuda");
  if (!loaded_now) return loaded_now;
  driver *first = nullptr;
  // Two threads may load at once, and the environment may change between them.
  chosen.compare_exchange_strong(first, *loaded_now, std::memory_order_acq_rel);
  return first != nullptr ? first : *loaded_now;
}

bool driver::has(driver_call c) const {
  switch (c) {
#define STILLMAP_HAS(call, symbol, since, parameters) \
  case driver_call::call:                             \
    return table_->call != nullptr;
    STILLMAP_DRIVER_SYMBOLS(STILLMAP_HAS)
#undef STILLMAP_HAS
  }
  return false;
}

void *driver::symbol(const char *name) const {
  return dlsym(library_, name);
}

void *driver::simulator_function(const char *name) const {
  std::array<char, 128> whole{};  // on the stack: callers may have no memory to spare
  const int length = std::snprintf(whole.data(), whole.size(), STILLMAP_SIMULATOR "_%s", name);
  return length < static_cast<int>(whole.size()) ? symbol(whole.data()) : nullptr;
}

driver_counts driver::counts() const {
  driver_counts out;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    out.calls[i] = calls_[i].load(std::memory_order_relaxed);
  }
  out.bytes_to_device = to_device_.load(std::memory_order_relaxed);
  out.bytes_to_host = to_host_.load(std::memory_order_relaxed);
  out.bytes_on_device = on_device_.load(std::memory_order_relaxed);
  return out;
}

void driver::reset_counts() {
  for (auto &n : calls_) n.store(0, std::memory_order_relaxed);
  to_device_.store(0, std::memory_order_relaxed);
  to_host_.store(0, std::memory_order_relaxed);
  on_device_.store(0, std::memory_order_relaxed);
}

}  // namespace stillmap
