#include "stillmap/checkpoint/publication/internal/client_handler.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {
namespace {

// How often a wait looks whether the client is still there.
constexpr std::chrono::milliseconds look_interval{50};
// Descriptors that pages and readers leave free, beside those of connections: for the rest of the process.
constexpr std::size_t process_descriptors = 64;
// Descriptors that pages leave free for readers, which have one each.
constexpr std::size_t reader_descriptors = 128;

// How many descriptors the process may open, less those that stay free.
std::size_t descriptor_limit(std::size_t stay_free) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return limit.rlim_cur > stay_free ? limit.rlim_cur - stay_free : 0;
}

// Of the connections, so that some are left for a publisher that is waited for.
std::size_t max_waiting(std::size_t connections) {
  return std::max<std::size_t>(1, connections - (connections + 3) / 4);
}

// What a page is only the driver knows, but no driver exports one as a socket. A holder that kept a client's
// end of a connection would not notice that the client is gone.
status check_is_no_socket(const owned_fd &fd) {
  struct stat st {};
  if (::fstat(fd.get(), &st) == 0 && !S_ISSOCK(st.st_mode)) return {};
  return make_error(errc::corrupt, "a descriptor is not one of a page");
}

}  // namespace

void refuse_client(checkpoint::socket_channel &with, const error &why) noexcept {
  message_stream(with, std::chrono::milliseconds(0), {}).refuse(why);
}

std::shared_ptr<const void> client_handler::serve(std::atomic<bool> &claimed) noexcept {
  const auto served =
      with_host_memory("publication::holder", [&] { return serve_request(claimed); });
  if (served) return *served;
  messages_.refuse(served.error());
  return nullptr;
}

result<client_handler::lease> client_handler::serve_request(std::atomic<bool> &claimed) {
  const std::chrono::milliseconds timeout = bounded(options_.timeout);
  auto received =
      with_.receive(max_manifest_bytes, timeout, stop_, std::chrono::steady_clock::now() + timeout);
  if (claimed.exchange(true)) {
    return make_error(errc::busy, "too many connections, and no request has come on this one",
                      options_.max_connections, options_.max_connections, error_unit::items);
  }
  STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message m, std::move(received));
  if (!m.fds.empty()) {
    return make_error(errc::corrupt, "the request carries file descriptors", m.fds.size(), 0,
                      error_unit::items);
  }
  const auto k = static_cast<kind>(m.kind);
  if (k == kind::attach) {
    STILLMAP_ASSIGN_OR_RETURN(const attach_request r, decode<attach_request>(m.body));
    return attach(r);
  }
  if (k == kind::publish) {
    STILLMAP_RETURN_IF_ERROR(publish(m.body));
  } else if (k == kind::list) {
    STILLMAP_RETURN_IF_ERROR(decode_version(m.body));
    STILLMAP_RETURN_IF_ERROR(messages_.send(kind::listing, encode(store_.list())));
  } else if (k == kind::withdraw) {
    STILLMAP_ASSIGN_OR_RETURN(const withdraw_request r, decode<withdraw_request>(m.body));
    const std::uint64_t generation = store_.withdraw(r.name);
    if (generation == 0) {
      return make_error(errc::invalid_argument, "nothing is published under this name");
    }
    STILLMAP_RETURN_IF_ERROR(messages_.send(kind::withdrawn, encode(generation_reply{generation})));
  } else {
    return make_error(errc::corrupt, "not a request to a holder (its kind)", m.kind);
  }
  return lease();
}

result<client_handler::lease> client_handler::attach(const attach_request &r) {
  STILLMAP_RETURN_IF_ERROR(check_name(r.name));
  const auto until = std::chrono::steady_clock::now() + r.wait;
  std::shared_ptr<holder_store::admission> waits;
  for (;;) {
    // Before a claim that another client gives up as the holder ends is passed on.
    if (stop_.stop_requested()) return make_error(errc::operation_canceled, "the holder ends");
    const std::uint64_t seen = store_.changes();
    if (lease found = store_.find(r.name, r.generation, with_.peer().pid, r.id)) {
      reached(holder_step::attach_received);
      const held_memory &memory = found->memory();
      if (memory.about.device != r.device || memory.page_bytes != r.page_bytes) {
        return make_error(errc::invalid_argument, "the memory was published on another device");
      }
      STILLMAP_RETURN_IF_ERROR(check_room_for_reader());
      STILLMAP_RETURN_IF_ERROR(send_memory(*found));
      return found;
    }
    const bool newest = r.generation == 0 && r.id.is_zero();
    const bool may_claim = r.claim && newest;
    if (!waits && (may_claim || r.wait.count() != 0)) {
      const std::size_t limit = max_waiting(options_.max_connections);
      waits = store_.admit_waiting(limit);
      if (!waits) {
        return make_error(errc::busy, "too many clients wait for a publication", limit + 1, limit,
                          error_unit::items);
      }
    }
    if (may_claim) {
      if (const auto held = store_.try_claim(r.name)) {
        STILLMAP_RETURN_IF_ERROR(serve_claim(*held));
        return lease();
      }
    }
    // What was published since find() looked is found once more.
    if (std::chrono::steady_clock::now() >= until && store_.changes() == seen) {
      if (r.wait.count() != 0) {
        return make_error(errc::busy, "nobody published the name in time",
                          static_cast<std::uint64_t>(r.wait.count()), 0, error_unit::milliseconds);
      }
      return make_error(errc::invalid_argument,
                        newest ? "nothing is published under this name"
                               : "there is no such generation of the name",
                        r.generation);
    }
    if (client_is_gone()) return make_error(errc::operation_canceled, "the client is gone");
    store_.wait(seen, look_interval);
  }
}

status client_handler::send_memory(const holder_store::lease &to) {
  const held_memory &memory = to.memory();
  STILLMAP_RETURN_IF_ERROR(
      messages_.send(kind::attached, encode_attached(memory.about.generation, memory.manifest)));
  reached(holder_step::manifest_sent);
  std::vector<int> fds;
  for (const fork_closed_fd &page : memory.pages) fds.push_back(page.get());
  STILLMAP_RETURN_IF_ERROR(messages_.send_pages(fds));
  reached(holder_step::pages_sent);
  return {};
}

// The client publishes when it is ready, or gives up by closing the connection.
status client_handler::serve_claim(const holder_store::claim &) {
  STILLMAP_RETURN_IF_ERROR(messages_.send(kind::claimed));
  for (;;) {
    pollfd p{with_.fd(), POLLIN | POLLRDHUP, 0};
    const int n = ::poll(&p, 1, static_cast<int>(look_interval.count()));
    if (n > 0) break;
    if (n < 0 && errno != EINTR) return make_system_error(errno, "the socket cannot be polled");
    if (stop_.stop_requested()) return make_error(errc::operation_canceled, "the holder ends");
  }
  STILLMAP_ASSIGN_OR_RETURN(const checkpoint::socket_message m,
                            messages_.receive(kind::publish, max_manifest_bytes));
  return publish(m.body);
}

status client_handler::publish(std::span<const std::byte> body) {
  STILLMAP_ASSIGN_OR_RETURN(const std::span<const std::byte> encoded, manifest_of_publish(body));
  auto memory = std::make_shared<held_memory>();
  {
    STILLMAP_ASSIGN_OR_RETURN(const manifest m, decode_manifest(encoded));
    memory->about.name = m.name;
    memory->about.device = m.device;
    memory->about.id = m.id();
    memory->about.pages = m.layout.pages.size();
    memory->about.bytes = m.layout.bytes();
    memory->about.publisher = with_.peer().pid;
    memory->page_bytes = m.page_bytes;
  }
  memory->manifest.assign(encoded.begin(), encoded.end());
  reached(holder_step::publish_received);
  STILLMAP_ASSIGN_OR_RETURN(const auto admitted, admit_descriptors(memory->about.pages));
  memory->pages.reserve(memory->about.pages);
  STILLMAP_RETURN_IF_ERROR(
      messages_.receive_pages(memory->about.pages, [&](std::vector<owned_fd> &fds) -> status {
        for (owned_fd &fd : fds) {
          if (status valid = check_is_no_socket(fd); !valid) return valid;
          memory->pages.push_back(fork_closed_fd::adopt(fd.release()));
        }
        return {};
      }));
  reached(holder_step::pages_received);
  STILLMAP_RETURN_IF_ERROR(messages_.send(kind::ready));
  reached(holder_step::ready_sent);
  // The publisher may still fail: before it commits, nothing is published.
  STILLMAP_RETURN_IF_ERROR(messages_.receive(kind::commit, 0));
  const std::uint64_t generation = store_.publish(std::move(memory));
  reached(holder_step::stored);
  // A publisher that is dead need not know. One that is alive is not refused any more: what is published
  // cannot be taken back.
  (void)with_host_memory(
      [&] { return messages_.send(kind::published, encode(generation_reply{generation})); });
  reached(holder_step::published_sent);
  return {};
}

result<std::shared_ptr<holder_store::admission>> client_handler::admit_descriptors(
    std::size_t pages) {
  const std::size_t limit =
      descriptor_limit(options_.max_connections + process_descriptors + reader_descriptors);
  if (auto admitted = store_.admit_fds(pages, limit)) return admitted;
  const std::size_t used = store_.open_fds();
  return make_error(errc::busy,
                    "the holder may not open a descriptor for each page: raise its limit of open "
                    "files, or withdraw what is no longer read",
                    pages, limit > used ? limit - used : 0, error_unit::pages);
}

// The reader's own lease is counted already.
status client_handler::check_room_for_reader() const {
  const std::size_t limit = descriptor_limit(options_.max_connections + process_descriptors);
  const std::size_t used = store_.open_fds();
  if (used <= limit) return {};
  return make_error(errc::busy,
                    "the holder may not keep a connection for each reader: raise its limit of open "
                    "files",
                    used, limit, error_unit::items);
}

bool client_handler::client_is_gone() const {
  pollfd p{with_.fd(), POLLRDHUP, 0};
  return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace stillmap::publication
