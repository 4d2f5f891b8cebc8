#include "preload/functions/serve.h"

#include "preload/functions/known_device.h"

namespace stillmap::preload {

constinit thread_local const void *lookup_caller = nullptr;
constinit std::atomic<bool> work_may_be_queued{false};
constinit std::atomic<std::uint32_t> known_device::era_{1};
constinit thread_local known_device::answer known_device::of_thread_;

}  // namespace stillmap::preload
