// What the audit log says of one request, from its arrival to its outcome.
#pragma once

#include <chrono>
#include <string>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/audit.h"

namespace stillmap::control {

// Does nothing where there is no function.
class request_record {
 public:
  explicit request_record(const audit_function &to) : to_(to) {}

  // Allocates host memory, as describe(): may throw std::bad_alloc.
  void begin(const checkpoint::socket_channel &with, const std::string &address);
  void set_kind(request_kind k) noexcept { record_.request = k; }
  template <class Request>
  void describe(const Request &r) {
    if (!to_) return;
    if constexpr (requires { r.all; }) record_.all = r.all;
    if constexpr (requires { r.tags; }) record_.tags = r.tags;
    if constexpr (requires { r.tag; }) {
      if (!r.all) record_.tags = {r.tag};
    }
    if constexpr (requires { r.path; }) record_.subject = r.path;
    if constexpr (requires { r.to; }) record_.subject = r.to;
    if constexpr (requires { r.directory; }) record_.subject = r.directory;
  }
  // Once: what follows is no outcome of the request. nullptr: it was carried out.
  void end(const error *failed);

 private:
  const audit_function &to_;
  audited_request record_;
  std::chrono::steady_clock::time_point began_;
  bool has_ended_ = false;
};

}  // namespace stillmap::control
