#include "tools/stillmap/task/hold.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>

#include "stillmap/checkpoint/control/audit.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

// The tags whose memory is still here, mapped or suspended. A tag leaves as a whole.
class held_tags {
 public:
  explicit held_tags(const checkpoint::memory_layout &l) : layout_(l) {
    for (const auto &b : l.blocks) {
      if (l.mapped_bytes(b.range) != 0) left_.insert(b.tag);
    }
  }
  // Returns whether none is left.
  bool release(std::span<const std::string> tags) {
    const std::lock_guard lock(mutex_);
    for (const std::string &t : tags) left_.erase(t);
    return left_.empty();
  }
  std::vector<std::string> left() const {
    const std::lock_guard lock(mutex_);
    return {left_.begin(), left_.end()};
  }
  // "16.0 MiB (weights, cache)"
  std::string text() const {
    std::size_t bytes = 0;
    const std::vector<std::string> tags = left();
    for (const std::string &t : tags) {
      for (const virtual_range &r : layout_.tagged(t)) bytes += layout_.mapped_bytes(r);
    }
    return printable(fmt::format("{} ({})", format_bytes(bytes), join(tags, ", ")));
  }

 private:
  const checkpoint::memory_layout &layout_;
  mutable std::mutex mutex_;
  std::set<std::string> left_;
};

// By a request to our own server, as any other: it is refused while another one is carried out.
bool save(const std::string &control, const held_tags &held, const std::string &image) {
  const std::string what = held.text();
  fmt::print(stderr, "stillmap: asked to end: saving {} as {}\n", what, image);
  const auto written =
      control::client(control).snapshot({.tags = held.left(), .path = absolute(image)});
  if (!written) {
    fmt::print(stderr, "stillmap: {}: not saved: {}\n", image,
               printable(written.error().message()));
    return false;
  }
  fmt::print(stderr, "stillmap: ok: {}: saved {}\n", image, what);
  return true;
}

void warn(const std::string &control, const held_tags &held) {
  fmt::print(stderr,
             "stillmap: asked to end, but {} is here only and would be lost. Still holding it.\n"
             "  To save it:  stillmap task snapshot {} --all -o IMAGE\n"
             "  To send it:  stillmap task handoff send, or stillmap task migrate send, {} ...\n"
             "  To lose it:  ask again (Ctrl-C, or kill {})\n",
             held.text(), control, control, ::getpid());
}

}  // namespace

outcome<reserved_control> reserve_control(const device &d, const std::string &control) {
  control::server_options options;
  options.not_ready = "the memory that this process waits for has not arrived";
  STILLMAP_ASSIGN_OR_RETURN(options.audit, control::open_audit_log_of_environment());
  control::audit_function audit = options.audit;
  STILLMAP_ASSIGN_OR_RETURN(
      auto server, about(control::server::create(d, control, std::move(options)), control));
  return reserved_control{std::move(server), std::move(audit)};
}

outcome<void> check_save(const std::string &image) {
  if (image.empty()) return {};
  const std::filesystem::path path = absolute(image);
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown)) {
    return fail(exit_refused, fmt::format("--save: {}: the image exists already", image));
  }
  if (::access(path.parent_path().c_str(), W_OK | X_OK) == 0) return {};
  const operation_scope scope("--save");
  return fail(make_system_error(errno, "the folder cannot be written", image).value());
}

outcome<exit_status> nothing_to_save_is_ok(outcome<exit_status> result, const std::string &save) {
  const auto is_cancelled = [](const failure &f) {
    return f.cause && f.cause->is(errc::operation_canceled);
  };
  if (result || save.empty() || !is_cancelled(result.error())) return result;
  fmt::print(stderr, "stillmap: asked to end: nothing has arrived that could be saved\n");
  return exit_ok;
}

outcome<exit_status> hold(const device &d, const checkpoint::restored_memory &memory,
                          reserved_control reserved, hold_options options, signal_waiter &end) {
  held_tags held(memory.layout());
  options.server.task.released = [&](auto tags) {
    if (held.release(tags)) end.finish();
  };
  options.server.audit = std::move(reserved.audit);
  const std::string control = reserved.server.address();
  { const control::server closed = std::move(reserved.server); }
  {
    const auto server = control::server::create(d, control, std::move(options.server));
    if (server) {
      options.ready(control);
    } else {
      fmt::print(stderr, "stillmap: {}: {}; the memory is held, but no request can reach it\n",
                 control, server.error().message());
    }
    for (unsigned asked = 1; end.wait_for(asked) && !held.left().empty(); ++asked) {
      if (!options.save.empty() && save(control, held, options.save)) return exit_ok;
      if (asked > 1) break;
      warn(control, held);
    }
    // The server may be sending the memory: its end waits for that.
  }
  if (held.left().empty()) return exit_ok;
  return fail(exit_failed, "lost " + held.text() + ", which was here only");
}

}  // namespace stillmap::tool
