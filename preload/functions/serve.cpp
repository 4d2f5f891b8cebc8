#include "preload/functions/serve.h"

namespace stillmap::preload {

constinit thread_local const void *lookup_caller = nullptr;
constinit std::atomic<bool> work_may_be_queued{false};

}  // namespace stillmap::preload
