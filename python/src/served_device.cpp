#include "python/src/served_device.h"

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "python/src/devices.h"
#include "python/src/memory_figures.h"
#include "python/src/safe_points.h"
#include "python/src/suspenders.h"
#include "stillmap/checkpoint/control/process_server.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

using tags_view = control::server_callbacks::tags_view;

struct served_devices {
  fork_watch born;
  mutex lock;
  std::map<int, std::shared_ptr<served_device>> all STILLMAP_GUARDED_BY(lock);
};

// Never destroyed: a server may be open when the process ends.
served_devices &served() {
  static served_devices *const made = new served_devices;
  return *made;
}

thread_local constinit bool runs_callback = false;

class callback_scope {
 public:
  callback_scope() noexcept { runs_callback = true; }
  ~callback_scope() { runs_callback = false; }
  callback_scope(const callback_scope &) = delete;
};

bool is_folder(const std::string &address) {
  std::error_code ignored;
  return address.ends_with('/') ||
         (address.starts_with('/') && std::filesystem::is_directory(address, ignored));
}

}  // namespace

bool in_control_callback() noexcept {
  return runs_callback;
}

result<std::shared_ptr<served_device>> served_device::create(int ordinal, serve_options options) {
  return with_host_memory("stillmap.serve", [&]() -> result<std::shared_ptr<served_device>> {
    auto made = std::make_shared<served_device>(ordinal, std::move(options));
    served_devices &s = served();
    {
      const lock_guard lock(s.lock);
      const auto [place, is_new] = s.all.try_emplace(ordinal, made);
      if (!is_new) {
        const error why =
            make_error(errc::busy, "the device has a control server: close that one first",
                       static_cast<std::uint64_t>(ordinal))
                .value();
        const bool has_address = place->second->phase_ != phase::created;
        return tl::unexpected(has_address ? why.about(place->second->address_) : why);
      }
    }
    const status listens = made->listen();
    if (listens) return made;
    const lock_guard lock(s.lock);
    s.all.erase(ordinal);
    return tl::unexpected(listens.error());
  });
}

control::server_options served_device::options_of_server() {
  control::server_options o;
  o.task.quiesce = [this](tags_view tags, const std::stop_token &stop) -> status {
    const callback_scope scope;
    if (options_.program.quiesce) return options_.program.quiesce(tags, stop);
    return safe_points::all().stop_threads(ordinal_, tags, options_.timeout, stop);
  };
  o.task.resume = [this](tags_view tags) {
    const callback_scope scope;
    if (options_.program.resume) options_.program.resume(tags);
    for (const std::string &tag : tags) safe_points::all().release(ordinal_, tag);
  };
  o.task.released = [this](tags_view tags) {
    const callback_scope scope;
    if (options_.program.released) options_.program.released(tags);
    for (const std::string &tag : tags) safe_points::all().release(ordinal_, tag);
  };
  o.task.memory = [ordinal = ordinal_] { return memory_figures_of(ordinal); };
  if (options_.program.throttle) {
    o.task.throttle = [this](tags_view tags, double fraction) {
      const callback_scope scope;
      options_.program.throttle(tags, fraction);
    };
  }
  if (!options_.program.released) {
    o.keeps_memory =
        "the program has no function `released`, so it could not go on without its memory";
  }
  return o;
}

status served_device::listen() {
  STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal_));
  control::server_options options = options_of_server();
  STILLMAP_ASSIGN_OR_RETURN(options.audit, control::open_audit_log_of_environment());
  STILLMAP_ASSIGN_OR_RETURN(options.suspender, suspender_of(ordinal_));
  const std::string &given = options_.address;
  auto made = given.empty() || is_folder(given) ? control::create_process_server(d, given, options)
                                                : control::server::create(d, given, options);
  if (!made) return tl::unexpected(made.error());
  address_ = made->address();
  {
    const lock_guard lock(mutex_);
    server_ = std::shared_ptr<control::server>(new control::server(std::move(*made)),
                                               [this](control::server *last) {
                                                 delete last;
                                                 ended_ = true;
                                                 ended_.notify_all();
                                               });
  }
  phase_ = phase::open;
  return {};
}

std::shared_ptr<control::server> served_device::server() const {
  const lock_guard lock(mutex_);
  return server_;
}

control::job_status served_device::job() {
  const auto of = server();
  return of ? of->job() : control::job_status{};
}

void served_device::abort() {
  // What cannot be cancelled ends by itself.
  if (const auto of = server()) (void)of->abort();
}

bool served_device::closed() const noexcept {
  return born_.in_child() || phase_.load() == phase::closed;
}

status served_device::close() {
  if (born_.in_child()) return {};
  const operation_scope scope("Server.close");
  if (in_control_callback()) {
    return make_error(errc::busy, "a callback of a control server cannot close one");
  }
  auto expected = phase::open;
  if (!phase_.compare_exchange_strong(expected, phase::closing)) {
    phase_.wait(phase::closing);
    return {};
  }
  {
    std::shared_ptr<control::server> last;
    const lock_guard lock(mutex_);
    last.swap(server_);
  }
  ended_.wait(false);     // another thread may be asking it something
  options_.program = {};  // a callback may lead to this object
  std::shared_ptr<served_device> mine;
  {
    // Threads at their safe points see that it is closed once the device may have another one.
    served_devices &s = served();
    const lock_guard lock(s.lock);
    const auto found = s.all.find(ordinal_);
    mine = std::move(found->second);
    s.all.erase(found);
    phase_ = phase::closed;
    safe_points::all().close(ordinal_);
  }
  phase_.notify_all();
  return {};
}

std::shared_ptr<served_device> served_device::known(int ordinal) {
  served_devices &s = served();
  if (s.born.in_child()) return nullptr;
  const lock_guard lock(s.lock);
  const auto found = s.all.find(ordinal);
  const bool is_there = found != s.all.end() && found->second->phase_ != phase::created;
  return is_there ? found->second : nullptr;
}

std::vector<std::shared_ptr<served_device>> served_device::all() {
  std::vector<std::shared_ptr<served_device>> out;
  served_devices &s = served();
  if (s.born.in_child()) return out;
  const lock_guard lock(s.lock);
  for (const auto &[ordinal, d] : s.all) {
    if (d->phase_ != phase::created) out.push_back(d);
  }
  return out;
}

void served_device::close_all(std::chrono::milliseconds most) {
  struct progress {
    mutex lock;
    condition_variable changed;
    std::size_t open STILLMAP_GUARDED_BY(lock) = 0;
  };
  const auto servers = all();
  if (servers.empty()) return;
  const auto common = std::make_shared<progress>();
  {
    const lock_guard lock(common->lock);
    common->open = servers.size();
  }
  for (const auto &of : servers) {
    const auto close_one = [of, common] {
      (void)of->close();
      const lock_guard lock(common->lock);
      --common->open;
      common->changed.notify_all();
    };
    try {
      start_thread<std::thread>(close_one).detach();
    } catch (const std::exception &) {
      close_one();
    }
  }
  unique_lock lock(common->lock);
  (void)common->changed.wait_for(
      lock, most, [&]() STILLMAP_REQUIRES(common->lock) { return common->open == 0; });
}

}  // namespace stillmap::python
