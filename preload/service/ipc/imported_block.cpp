#include "preload/service/ipc/imported_block.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "preload/service/ipc/refusal.h"
#include "preload/service/real_driver.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/physical_memory.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::preload {
namespace {

using std::chrono::steady_clock;

status send(checkpoint::socket_channel &to, ipc_message kind,
            std::span<const std::byte> body = {}) {
  return to.send(static_cast<std::uint16_t>(kind), body, {}, ipc_message_timeout, {},
                 steady_clock::now() + ipc_message_timeout);
}

// The exporter's answer, or its refusal as an error.
result<checkpoint::socket_message> receive(checkpoint::socket_channel &from) {
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::socket_message m,
                            from.receive(max_ipc_message_bytes, ipc_message_timeout, {},
                                         steady_clock::now() + ipc_message_timeout));
  if (const auto why = parse_body<driver_code>(m, ipc_message::refused)) {
    return make_driver_error(*why == code::success ? code::invalid_handle : *why,
                             "the exporter refused");
  }
  return m;
}

struct opened_connection {
  checkpoint::socket_channel exporter;
  opened_block about;
};

result<opened_connection> connect_once(const memory_handle &h) {
  STILLMAP_ASSIGN_OR_RETURN(auto exporter, checkpoint::socket_channel::connect(h.address()));
  // An abstract name that its owner has given up is anybody's.
  if (!checkpoint::is_same_user_or_root(exporter.peer())) {
    return make_driver_error(code::invalid_handle, "another user has the exporter's socket");
  }
  STILLMAP_RETURN_IF_ERROR(send(exporter, ipc_message::open, body_of(h)));
  STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message m, receive(exporter));
  const auto about = parse_body<opened_block>(m, ipc_message::opened);
  if (!about || !m.fds.empty()) return make_error(errc::corrupt, "not an exporter's answer");
  return opened_connection{std::move(exporter), *about};
}

// Again while the exporter has too many others.
result<opened_connection> connect_to_exporter(const memory_handle &h) {
  const auto until = steady_clock::now() + ipc_message_timeout;
  for (;;) {
    auto opened = connect_once(h);
    const bool busy = !opened && opened.error().code.value() == code::not_ready &&
                      opened.error().code.category() == cuda_category();
    if (!busy || steady_clock::now() >= until) return opened;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool contains(const std::vector<int> &all, int one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// The device with this UUID, whose ordinal may be another one here.
result<device> find_device(const std::array<unsigned char, 16> &uuid, int current) {
  STILLMAP_ASSIGN_OR_RETURN(driver *const drv, open_real_driver());
  STILLMAP_ASSIGN_OR_RETURN(const device own, device::open(*drv, current));
  if (own.uuid() == uuid) return own;
  STILLMAP_ASSIGN_OR_RETURN(const int count, drv->device_count());
  for (int i = 0; i < count; ++i) {
    if (i == current) continue;
    STILLMAP_ASSIGN_OR_RETURN(const int handle, drv->device_handle(i));
    STILLMAP_ASSIGN_OR_RETURN(const auto known, drv->device_uuid(handle));
    if (known != uuid) continue;
    STILLMAP_ASSIGN_OR_RETURN(const device found, device::open(*drv, i));
    if (contains(found.capabilities().peers, current)) return found;
    break;
  }
  return make_driver_error(code::peer_access_unsupported, "the device cannot access the memory");
}

status check(const memory_handle &h, const opened_block &b, const device &d) {
  const std::uint64_t most = d.total_memory().bytes();
  if (b.page_bytes == 0 || b.page_bytes > most || b.pages == 0 || b.pages > most / b.page_bytes ||
      h.offset >= b.page_bytes || h.bytes == 0 || h.bytes > b.pages * b.page_bytes - h.offset) {
    return make_error(errc::corrupt, "the block and its pages do not fit", b.pages, 0,
                      error_unit::pages);
  }
  return {};
}

}  // namespace

result<std::unique_ptr<imported_block>> imported_block::open(const memory_handle &h, int current) {
  STILLMAP_ASSIGN_OR_RETURN(opened_connection c, connect_to_exporter(h));
  STILLMAP_ASSIGN_OR_RETURN(const device d, find_device(c.about.device, current));
  STILLMAP_RETURN_IF_ERROR(check(h, c.about, d));
  page_pool_options options;
  options.page_bytes = c.about.page_bytes;
  options.exportable = handle_type::posix_fd;
  options.keep_free = 0;
  STILLMAP_ASSIGN_OR_RETURN(auto pool, page_pool::create(d, options));
  // Without a tag: no call suspends what another process owns.
  STILLMAP_ASSIGN_OR_RETURN(auto reserved,
                            reservation::create(d, c.about.page_bytes * c.about.pages));
  std::unique_ptr<imported_block> made(
      new imported_block(h, d, std::move(reserved), std::move(pool), std::move(c.exporter)));
  STILLMAP_RETURN_IF_ERROR(made->fetch(c.about.pages));
  STILLMAP_RETURN_IF_ERROR(made->map());
  return made;
}

imported_block::~imported_block() {
  report_if_failed(close());
}

virtual_range imported_block::block() const {
  return {pages().begin + handle_.offset, handle_.bytes};
}

status imported_block::fetch(std::uint64_t count) {
  imported_.reserve(count);
  while (imported_.size() < count) {
    STILLMAP_RETURN_IF_ERROR(send(*exporter_, ipc_message::next));
    STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message m, receive(*exporter_));
    if (m.kind != static_cast<std::uint16_t>(ipc_message::pages) || !m.body.empty() ||
        m.fds.empty() || m.fds.size() > count - imported_.size()) {
      return make_error(errc::corrupt, "not the pages that were asked for", m.fds.size());
    }
    for (const owned_fd &fd : m.fds) STILLMAP_RETURN_IF_ERROR(import_page(fd));
  }
  return {};
}

status imported_block::import_page(const owned_fd &fd) {
  STILLMAP_ASSIGN_OR_RETURN(physical_memory memory,
                            physical_memory::import_fd(device_, fd, pool_->page_bytes()));
  STILLMAP_ASSIGN_OR_RETURN(page_ptr page, pool_->adopt(std::move(memory)));
  imported_.push_back(std::move(page));
  return {};
}

status imported_block::map() {
  std::vector<access_grant> access{{on_device(device_.ordinal()), access_mode::read_write}};
  for (const int peer : device_.capabilities().peers) {
    access.push_back({on_device(peer), access_mode::read_write});
  }
  remap_plan plan(std::move(access));
  device_address at = pages().begin;
  for (page_ptr &p : imported_) {
    const std::size_t bytes = p->bytes();
    plan.map(at, std::move(p));
    at = at + bytes;
  }
  imported_.clear();
  STILLMAP_RETURN_IF_ERROR(device_.space().apply(std::move(plan)));
  mapped_ = true;
  return {};
}

status imported_block::close() {
  if (mapped_) STILLMAP_RETURN_IF_ERROR(device_.space().unmap(pages()));
  mapped_ = false;
  imported_.clear();
  exporter_.reset();
  return {};
}

}  // namespace stillmap::preload
