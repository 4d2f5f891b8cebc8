#include "preload/service/ipc/exporter.h"

#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "preload/service/ipc/random.h"
#include "preload/service/ipc/refusal.h"
#include "stillmap/checkpoint/base/socket_server.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::preload {
namespace {

// Importers that fetch pages at once. Blocks that are open are not counted.
constexpr std::size_t max_sessions = 64;

struct exporter {
  stillmap::mutex mutex;
  // Never destroyed: other processes may open memory to the program's very end.
  std::optional<checkpoint::socket_server> listening STILLMAP_GUARDED_BY(mutex);
  std::uint64_t number STILLMAP_GUARDED_BY(mutex) = 0;
};

exporter &the_exporter() noexcept {
  static undying<exporter> only;
  return *only;
}

// The importer tries again where the exporter is busy.
driver_code code_for_importer(const error &why) noexcept {
  return why.is(errc::busy) ? code::not_ready : code_of_refusal(why);
}

result<checkpoint::socket_server> listen(std::uint64_t number) {
  memory_handle name;
  name.process = ::getpid();
  name.server = number;
  checkpoint::socket_server_options options;
  options.server = "stillmap_preload";
  options.max_connections = max_sessions;
  options.refuse = [](checkpoint::socket_channel &with, const error &why) {
    export_session::refuse(with, code_for_importer(why));
  };
  return checkpoint::socket_server::create(
      name.address(), std::move(options),
      [](checkpoint::socket_channel &with, std::atomic<bool> &claimed,
         const std::stop_token &stop) { return export_session(with, claimed, stop).serve(); });
}

}  // namespace

result<std::uint64_t> start_exporter() {
  exporter &e = the_exporter();
  const lock_guard lock(e.mutex);
  if (e.listening) return e.number;
  STILLMAP_RETURN_IF_ERROR(fill_randomly(std::as_writable_bytes(std::span(&e.number, 1))));
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_server made, listen(e.number));
  e.listening.emplace(std::move(made));
  return e.number;
}

bool is_own_exporter(std::uint64_t server) noexcept {
  exporter &e = the_exporter();
  const lock_guard lock(e.mutex);
  return e.listening && e.number == server;
}

std::shared_ptr<const void> export_session::serve() noexcept {
  const auto sent = with_host_memory("stillmap_preload", [&] { return send_block(); });
  if (sent) return *sent;
  refuse(with_, code_for_importer(sent.error()));
  return nullptr;
}

// The importer waits for the answer, so that there is room for it; where it does not, nobody waits for it.
void export_session::refuse(checkpoint::socket_channel &with, driver_code why) noexcept {
  static_cast<void>(with_host_memory([&] {
    return with.send(static_cast<std::uint16_t>(ipc_message::refused), body_of(why), {},
                     std::chrono::milliseconds(0), {});
  }));
}

result<std::shared_ptr<const exported_pages>> export_session::send_block() {
  STILLMAP_ASSIGN_OR_RETURN(auto pages, open());
  const opened_block about{pages->page_bytes(), pages->count(), pages->on().uuid()};
  STILLMAP_RETURN_IF_ERROR(send(ipc_message::opened, body_of(about)));
  for (std::size_t first = 0; first < pages->count();) {
    STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message m, receive());
    if (m.kind != static_cast<std::uint16_t>(ipc_message::next) || !m.body.empty()) {
      return make_error(errc::corrupt, "not a request for pages", m.kind);
    }
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t sent, send_pages(*pages, first));
    first += sent;
  }
  return pages;
}

result<std::shared_ptr<const exported_pages>> export_session::open() {
  auto received = receive();
  if (claimed_.exchange(true)) return make_error(errc::busy, "no request came in time");
  STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message m, std::move(received));
  const auto handle = parse_body<memory_handle>(m, ipc_message::open);
  if (!handle || !m.fds.empty()) return make_error(errc::corrupt, "not a request for a block");
  auto block = exported_blocks::all().open(*handle);
  if (!block) return make_error(errc::invalid_argument, "there is no block with this handle");
  STILLMAP_ASSIGN_OR_RETURN(exported_pages pages, exported_pages::create(std::move(block)));
  return std::make_shared<const exported_pages>(std::move(pages));
}

result<std::size_t> export_session::send_pages(const exported_pages &all, std::size_t first) {
  STILLMAP_ASSIGN_OR_RETURN(const std::vector<owned_fd> owned,
                            all.export_fds(first, max_ipc_message_pages));
  std::vector<int> fds;
  fds.reserve(owned.size());
  for (const owned_fd &fd : owned) fds.push_back(fd.get());
  STILLMAP_RETURN_IF_ERROR(send(ipc_message::pages, {}, fds));
  return fds.size();
}

result<checkpoint::socket_message> export_session::receive() {
  return with_.receive(max_ipc_message_bytes, ipc_message_timeout, stop_,
                       std::chrono::steady_clock::now() + ipc_message_timeout);
}

status export_session::send(ipc_message kind, std::span<const std::byte> body,
                            std::span<const int> fds) {
  return with_.send(static_cast<std::uint16_t>(kind), body, fds, ipc_message_timeout, stop_,
                    std::chrono::steady_clock::now() + ipc_message_timeout);
}

}  // namespace stillmap::preload
