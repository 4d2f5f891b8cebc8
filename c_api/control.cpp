// The control server, and the callbacks of the program that it runs.
#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/c_api/internal/objects.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::c_api {
namespace {

using tags_view = control::server_callbacks::tags_view;

std::vector<const char *> texts(tags_view tags) {
  std::vector<const char *> all;
  all.reserve(tags.size());
  for (const std::string &tag : tags) all.push_back(tag.c_str());
  return all;
}

// Calls the program once for all tags; where the host has no memory for their array, once for each tag.
template <class Call>
void with_tags(tags_view tags, Call call) noexcept {
  std::vector<const char *> all;
  const status listed = with_host_memory([&]() -> status {
    all = texts(tags);
    return {};
  });
  if (listed) return call(all.data(), all.size());
  for (const std::string &tag : tags) {
    const char *const text = tag.c_str();
    call(&text, std::size_t{1});
  }
}

status quiesce(stillmap_quiesce_callback call, void *user, tags_view tags, std::stop_token stop) {
  return with_host_memory([&]() -> status {
    const std::vector<const char *> all = texts(tags);
    STILLMAP_ASSIGN_OR_RETURN(auto slot, handle_slot::take());
    auto *const handle =
        static_cast<stillmap_stop *>(std::move(slot).name(handle_kind::stop, &stop));
    const int refused = call(all.data(), all.size(), handle, user);
    (void)take_object(handle, handle_kind::stop);
    if (refused == STILLMAP_OK) return {};
    return make_error(condition_of(refused), "the program's quiesce callback refused",
                      static_cast<std::uint64_t>(static_cast<std::uint32_t>(refused)));
  });
}

result<control::server_options> options_from(const stillmap_control_options *given) {
  STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(given));
  control::server_options options;
  if (o.quiesce != nullptr) {
    options.task.quiesce = [call = o.quiesce, user = o.user](tags_view tags, std::stop_token stop) {
      return c_api::quiesce(call, user, tags, std::move(stop));
    };
  }
  const auto forward = [user = o.user](stillmap_tags_callback call) {
    return [call, user](tags_view tags) {
      with_tags(tags,
                [&](const char *const *names, std::size_t count) { call(names, count, user); });
    };
  };
  if (o.resume != nullptr) options.task.resume = forward(o.resume);
  if (o.released != nullptr) options.task.released = forward(o.released);
  if (o.throttle != nullptr) {
    options.task.throttle = [call = o.throttle, user = o.user](tags_view tags, double fraction) {
      with_tags(tags, [&](const char *const *names, std::size_t count) {
        call(names, count, fraction, user);
      });
    };
  }
  if (o.suspender != nullptr) {
    STILLMAP_ASSIGN_OR_RETURN(const suspender_object *const s, find_suspender(o.suspender));
    options.suspender = s->suspender;
  }
  options.records = text_of(o.records);
  if (o.timeout_milliseconds < 0) {
    return make_error(errc::invalid_argument, "the timeout is negative");
  }
  if (o.timeout_milliseconds > 0) {
    options.timeout = std::chrono::milliseconds(o.timeout_milliseconds);
  }
  if (o.max_connections != 0) options.max_connections = o.max_connections;
  return options;
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_control_create(stillmap_device *device, const char *address,
                                        const stillmap_control_options *options,
                                        stillmap_control **control) noexcept {
  return create("stillmap_control_create", handle_kind::control, control,
                [&]() -> result<std::unique_ptr<stillmap::control::server>> {
                  STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
                  if (address == nullptr) return missing("the address is NULL");
                  STILLMAP_ASSIGN_OR_RETURN(auto with, options_from(options));
                  STILLMAP_ASSIGN_OR_RETURN(with.audit,
                                            stillmap::control::open_audit_log_of_environment());
                  STILLMAP_ASSIGN_OR_RETURN(
                      auto made, stillmap::control::server::create(*d, address, std::move(with)));
                  return std::make_unique<stillmap::control::server>(std::move(made));
                });
}

stillmap_status stillmap_control_destroy(stillmap_control *control) noexcept {
  return destroy<stillmap::control::server>("stillmap_control_destroy", control,
                                            handle_kind::control);
}

const char *stillmap_control_address(stillmap_control *control) noexcept {
  const char *address = nullptr;
  enter("stillmap_control_address", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(const auto *const server,
                              find<stillmap::control::server>(control, handle_kind::control));
    address = server->address().c_str();
    return {};
  });
  return address;
}

int stillmap_stop_requested(stillmap_stop *stop) noexcept {
  int requested = 0;
  enter("stillmap_stop_requested", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(const std::stop_token *const token,
                              find<std::stop_token>(stop, handle_kind::stop));
    requested = token->stop_requested() ? 1 : 0;
    return {};
  });
  return requested;
}
