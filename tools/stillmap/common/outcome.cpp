#include "tools/stillmap/common/outcome.h"

#include <algorithm>
#include <string_view>

#include "stillmap/vmm/base/json_writer.h"

namespace stillmap::tool {
namespace {

const char *exit_status_name(exit_status s) {
  constexpr const char *names[] = {"ok",   "failed",  "usage",   "not_found",
                                   "busy", "refused", "differs", "in_doubt"};
  return names[s];
}

const char *unit_name(error_unit u) {
  constexpr const char *names[] = {"", "bytes", "pages", "address", "milliseconds", "items"};
  return names[static_cast<std::size_t>(u)];
}

// A request to a task. What failed there has the message of that process, with its values and its code: they are not
// said twice, and the command is the operation.
std::string message_of(const error &e) {
  constexpr std::string_view of_request = "control::";
  if (!std::string_view(e.operation).starts_with(of_request)) return e.message();
  const error_detail &d = e.detail();
  if (d.cause.empty()) {
    error unnamed = e;
    unnamed.operation = "";
    return unnamed.message();
  }
  std::string said = d.cause;
  if (const std::size_t at = said.find(of_request); at != std::string::npos) {
    const std::size_t end = said.find(": ", at);
    if (end != std::string::npos) said.erase(at, end + 2 - at);
  }
  return d.subject.empty() ? said : d.subject + ": " + said;
}

bool is_one_of(const std::error_code &code, std::initializer_list<std::errc> conditions) {
  return std::any_of(conditions.begin(), conditions.end(), [&](std::errc c) { return code == c; });
}

}  // namespace

exit_status exit_status_of(const error &e) {
  using std::errc;
  if (is_one_of(e.code, {errc::no_such_file_or_directory, errc::connection_refused,
                         errc::no_such_device, errc::not_a_directory, errc::no_such_process})) {
    return exit_not_found;
  }
  if (e.is(stillmap::errc::busy) ||
      is_one_of(e.code, {errc::device_or_resource_busy, errc::address_in_use, errc::timed_out,
                         errc::resource_unavailable_try_again, errc::operation_in_progress})) {
    return exit_busy;
  }
  if (e.is(stillmap::errc::not_supported) ||
      is_one_of(e.code, {errc::permission_denied, errc::operation_not_permitted,
                         errc::read_only_file_system, errc::file_exists})) {
    return exit_refused;
  }
  return e.is(stillmap::errc::invalid_argument) || e.code == errc::invalid_argument ? exit_usage
                                                                                    : exit_failed;
}

failure::failure(exit_status s, const std::string &text) : status(s), line(printable(text)) {}
failure::failure(const error &e) : failure(exit_status_of(e), message_of(e)) {
  cause = e;
}

std::string json_of(const failure &f, const std::string &command) {
  json_writer json;
  json.begin_object().begin_object("error");
  json.field("command", command).field("exit_status", f.status).field("message", f.line);
  if (f.cause) {
    const error &e = *f.cause;
    json.field("operation", e.operation).field("reason", e.reason);
    json.field("code", e.code.message()).field("subject", e.detail().subject);
    json.field("value", e.value).field("limit", e.limit).field("unit", unit_name(e.unit));
  } else {
    json.field("operation", command)
        .field("reason", f.line)
        .field("code", exit_status_name(f.status));
    json.nothing("subject").nothing("value").nothing("limit").nothing("unit");
  }
  return json.end().end().text();
}

}  // namespace stillmap::tool
