#include "stillmap/allocators/engine/thread_stream.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::thread_stream {
namespace {

// A key is the number of a thread with the highest bit set, which no address of the process has.
constexpr std::uintptr_t key_bit = std::uintptr_t{1} << 63;
constexpr std::uintptr_t per_thread_handle = 2;  // CU_STREAM_PER_THREAD

std::uintptr_t value_of(stream_ref s) {
  return reinterpret_cast<std::uintptr_t>(s.get());
}
stream_ref made_of(std::uintptr_t value) {
  return reinterpret_cast<stream_handle>(value);
}
bool is_key(stream_ref s) {
  return (value_of(s) & key_bit) != 0;
}

struct thread_list {
  stillmap::mutex mutex;
  std::uintptr_t last STILLMAP_GUARDED_BY(mutex) = 0;
  // The numbers of threads that have a key.
  std::vector<std::uintptr_t> running STILLMAP_GUARDED_BY(mutex);
};
thread_list &threads() {
  static undying<thread_list> all;  // threads may end after static objects do
  return *all;
}

thread_local std::uintptr_t this_thread = 0;  // its number; 0: it has none yet

struct registration {
  registration() {
    thread_list &all = threads();
    const lock_guard lock(all.mutex);
    all.running.push_back(all.last + 1);
    this_thread = ++all.last;
  }
  ~registration() {
    thread_list &all = threads();
    const lock_guard lock(all.mutex);
    std::erase(all.running, this_thread);
  }
};

stream_ref key_of_this_thread() {
  thread_local const registration until_the_thread_ends;
  return made_of(key_bit | this_thread);
}

}  // namespace

stream_ref key_of(stream_ref s) {
  return value_of(s) == per_thread_handle ? key_of_this_thread() : s;
}

bool of_another_thread(stream_ref key) {
  return is_key(key) && value_of(key) != (key_bit | this_thread);
}

stream_ref handle_of(stream_ref key) {
  return of_another_thread(key) ? stream_ref::legacy() : reported(key);
}

stream_ref reported(stream_ref key) {
  return is_key(key) ? made_of(per_thread_handle) : key;
}

bool thread_ended(stream_ref key) {
  if (!is_key(key)) return false;
  thread_list &all = threads();
  const lock_guard lock(all.mutex);
  return std::find(all.running.begin(), all.running.end(), value_of(key) & ~key_bit) ==
         all.running.end();
}

}  // namespace stillmap::thread_stream
