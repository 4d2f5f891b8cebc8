// Versions, errors of the calling thread, background errors.
#include "stillmap/vmm/base/error.h"

#include <iterator>

#include "stillmap/c_api/internal/entry.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::c_api {
namespace {

struct background_state {
  stillmap::mutex mutex;
  stillmap_error_callback callback STILLMAP_GUARDED_BY(mutex) = nullptr;
  void *user STILLMAP_GUARDED_BY(mutex) = nullptr;
};
background_state &background() {
  static undying<background_state> state;
  return *state;
}

constexpr const char *status_names[] = {"success",
                                        "out of memory",
                                        "address space exhausted",
                                        "invalid argument",
                                        "not supported",
                                        "busy",
                                        "device lost",
                                        "corrupt",
                                        "operation canceled",
                                        "out of host memory",
                                        "system error",
                                        "driver error"};

void pass_on(const error &e, void *) noexcept {
  stillmap_error_callback callback = nullptr;
  void *user = nullptr;
  {
    background_state &b = background();
    const lock_guard lock(b.mutex);
    callback = b.callback;
    user = b.user;
  }
  if (callback == nullptr) return;
  described_error described;
  describe(e.operation, e, described);
  callback(&described.values, user);
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

uint32_t stillmap_api_version() noexcept {
  return STILLMAP_C_API_VERSION;
}

const char *stillmap_version() noexcept {
  return STILLMAP_VERSION_STRING;
}

stillmap_status stillmap_error_last(stillmap_error *error) noexcept {
  if (!check_struct(error, sizeof *error)) return STILLMAP_INVALID_ARGUMENT;
  stillmap_error values = latest_error().values;
  for (const char **text : {&values.function, &values.operation, &values.reason, &values.subject,
                            &values.message, &values.advice}) {
    if (*text == nullptr) *text = "";
  }
  write_struct(error, values);
  return STILLMAP_OK;
}

const char *stillmap_error_message() noexcept {
  return latest_error().message.data();
}

void stillmap_error_clear() noexcept {
  latest_error().values = {};
  latest_error().subject[0] = latest_error().message[0] = '\0';
}

const char *stillmap_status_name(int status) noexcept {
  const bool known = status >= 0 && status < static_cast<int>(std::size(status_names));
  return known ? status_names[status] : "unknown";
}

stillmap_status stillmap_background_error_set_callback(stillmap_error_callback callback,
                                                       void *user) noexcept {
  return enter("stillmap_background_error_set_callback", [&]() -> status {
    {
      background_state &b = background();
      const lock_guard lock(b.mutex);
      b.callback = callback;
      b.user = user;
    }
    set_error_sink(callback != nullptr ? pass_on : nullptr, nullptr);
    return {};
  });
}

uint64_t stillmap_background_error_count() noexcept {
  return background_error_count();
}
