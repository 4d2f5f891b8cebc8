// stillmap metrics: the machine's device memory for Prometheus.
#include <fmt/format.h>
#include <microhttpd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>

#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/vmm/base/owned_fd.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/metrics/listen.h"
#include "tools/stillmap/metrics/metrics_command.h"
#include "tools/stillmap/metrics/open_metrics.h"
#include "tools/stillmap/task/request.h"
#include "tools/stillmap/task/wait_for_signal.h"

namespace stillmap::tool {
namespace {

constexpr std::chrono::seconds answer_limit{1};
constexpr unsigned client_timeout_s = 5;

// Looks for one client at a time.
class metrics_source {
 public:
  explicit metrics_source(const metrics_options &o) : watch_(o.folders, answer_limit) {}

  using format = std::string (*)(const machine_view &, double look_seconds);
  outcome<std::string> read(format f) {
    const std::lock_guard lock(mutex_);
    const auto begun = std::chrono::steady_clock::now();
    STILLMAP_ASSIGN_OR_RETURN(const machine_view view, watch_.look());
    return f(view, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }

 private:
  std::mutex mutex_;
  machine_watch watch_;
};

// Answers scrapes, each on a thread of the server, until it is destroyed.
class metrics_server {
 public:
  // Owns the listening socket. Errors: exit_failed (no thread could be started).
  static outcome<std::unique_ptr<metrics_server>> create(owned_fd listening, metrics_source &from) {
    std::unique_ptr<metrics_server> out(new metrics_server(from));
    out->daemon_ =
        ::MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, nullptr, nullptr,
                           &answer, out.get(), MHD_OPTION_LISTEN_SOCKET, listening.get(),
                           MHD_OPTION_THREAD_POOL_SIZE, 4U, MHD_OPTION_CONNECTION_TIMEOUT,
                           client_timeout_s, MHD_OPTION_CONNECTION_LIMIT, 64U, MHD_OPTION_END);
    if (out->daemon_ == nullptr) return fail(exit_failed, "the server cannot be started");
    (void)listening.release();  // closed with the server
    return out;
  }
  ~metrics_server() {
    if (daemon_ != nullptr) ::MHD_stop_daemon(daemon_);
  }
  metrics_server(const metrics_server &) = delete;

 private:
  explicit metrics_server(metrics_source &from) : from_(from) {}

  static MHD_Result answer(void *self, MHD_Connection *client, const char *url, const char *method,
                           const char *, const char *, std::size_t *, void **) noexcept {
    const bool reads = std::strcmp(method, MHD_HTTP_METHOD_GET) == 0 ||
                       std::strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    if (!reads) return send(client, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n", plain_type);
    if (std::strcmp(url, "/metrics") != 0)
      return send(client, MHD_HTTP_NOT_FOUND, "/metrics has the metrics\n", plain_type);
    try {
      const auto text = static_cast<metrics_server *>(self)->from_.read(open_metrics_of);
      if (!text)
        return send(client, MHD_HTTP_SERVICE_UNAVAILABLE, text.error().line + "\n", plain_type);
      return send(client, MHD_HTTP_OK, *text, open_metrics_type);
    } catch (const std::exception &) {  // no memory: through C it must not go
      return MHD_NO;
    }
  }

  static constexpr const char *plain_type = "text/plain; charset=utf-8";
  static MHD_Result send(MHD_Connection *client, unsigned status, const std::string &text,
                         const char *type) {
    MHD_Response *const reply = ::MHD_create_response_from_buffer(
        text.size(), const_cast<char *>(text.data()), MHD_RESPMEM_MUST_COPY);
    if (reply == nullptr) return MHD_NO;
    ::MHD_add_response_header(reply, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    const MHD_Result queued = ::MHD_queue_response(client, status, reply);
    ::MHD_destroy_response(reply);
    return queued;
  }

  metrics_source &from_;
  MHD_Daemon *daemon_ = nullptr;
};

// All of it or nothing, whoever reads meanwhile; everybody may read it.
outcome<void> write_file(const std::string &path, const std::string &text) {
  const auto write = [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(
        const auto to, checkpoint::target_name::create(checkpoint::file_system::system(), path));
    STILLMAP_ASSIGN_OR_RETURN(auto file, checkpoint::atomic_file::create(to, false));
    STILLMAP_RETURN_IF_ERROR(file.file().write(std::as_bytes(std::span(text)), 0));
    if (::fchmod(file.file().fd(), 0644) != 0)
      return make_system_error(errno, "others cannot be allowed to read it");
    return file.publish(true);
  };
  return about(write(), path);
}

outcome<exit_status> keep_file(const metrics_options &o, metrics_source &from) {
  const auto write = [&]() -> outcome<void> {
    STILLMAP_ASSIGN_OR_RETURN(const std::string text, from.read(text_file_of));
    return write_file(o.textfile, text);
  };
  STILLMAP_RETURN_IF_ERROR(write());
  if (o.once) return exit_ok;
  STILLMAP_ASSIGN_OR_RETURN(const auto asked, signal_waiter::create());
  for (;;) {
    std::mutex unused;
    std::unique_lock lock(unused);
    std::condition_variable_any never;
    never.wait_for(lock, asked->token(), milliseconds_of(o.interval), [] { return false; });
    if (asked->token().stop_requested()) break;
    // Old figures would look like new ones.
    if (const auto written = write(); !written) {
      fmt::print(stderr, "stillmap: metrics: {}\n", written.error().line);
      ::unlink(o.textfile.c_str());
    }
  }
  ::unlink(o.textfile.c_str());
  return exit_ok;
}

}  // namespace

outcome<exit_status> run_metrics(const metrics_options &o) {
  metrics_source source(o);
  if (!o.textfile.empty()) return keep_file(o, source);
  if (o.once) {
    STILLMAP_ASSIGN_OR_RETURN(const std::string text, source.read(open_metrics_of));
    fmt::print("{}", text);
    return exit_ok;
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto asked, signal_waiter::create());
  STILLMAP_ASSIGN_OR_RETURN(auto listening, listen_for_scrapes(o.socket, o.listen));
  const scrape_socket_path path(listening.path);
  STILLMAP_ASSIGN_OR_RETURN(const auto server,
                            metrics_server::create(std::move(listening.fd), source));
  fmt::print("stillmap: metrics at {}\n", listening.place);
  std::fflush(stdout);
  asked->wait_for(1);
  return exit_ok;
}

void add_metrics_command(command &root) {
  const auto [c, o] =
      root.add("metrics", run_metrics,
               "Serves the machine's device memory as metrics, in the format OpenMetrics, until it "
               "is asked to end. For each "
               "device, task and tag: what stillmap top shows. Prometheus scrapes it at /metrics.");
  c.arguments(o.folders, "DIR", "folders with control sockets, beside the abstract ones");
  c.text("--listen", o.listen, "ADDRESS",
         "the address and the port to listen on (default: 127.0.0.1:9835); port 0: any that is "
         "free, which is printed");
  c.text("--socket", o.socket, "SOCKET",
         "a socket to listen on instead, which only this user can open");
  c.text("--textfile", o.textfile, "FILE",
         "write a file for node_exporter's textfile collector instead, again and again");
  c.number("--interval", o.interval, 1.0, 86400.0, "SECONDS",
           "how long from one file to the next (default: 15)")
      .with("--textfile");
  c.flag("--once", o.once, "print the metrics, or write the file, once");
}

}  // namespace stillmap::tool
