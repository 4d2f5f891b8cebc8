// Messages between a holder and its clients, and how both send them. docs/publication.md#protocol
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/common/layout_wire.h"
#include "stillmap/checkpoint/publication/manifest.h"
#include "stillmap/checkpoint/publication/publication.h"

namespace stillmap::publication {

// No value of handoff's or control's, so that connecting to the wrong kind of process is detected.
enum class kind : std::uint16_t {
  attach = 0x200,
  publish,  // a manifest; then pages, and commit
  pages,    // descriptors, in the order of the manifest's pages, max_fds a message; both ways
  commit,
  list,
  withdraw,
  attached = 0x280,  // generation and manifest; then pages
  claimed,           // nothing is published: the client is to publish
  ready,             // all pages have come; nothing is published before the client commits
  published,         // the generation
  listing,
  withdrawn,
  refusal,
};

// The first field of every request.
inline constexpr std::uint32_t protocol_version = 1;

// A wait or timeout is cut off here, so that it fits into a message, and a deadline into a clock.
inline constexpr std::chrono::milliseconds max_wait = std::chrono::hours(24 * 40);
std::chrono::milliseconds bounded(std::chrono::milliseconds wait);

inline constexpr std::size_t max_request_bytes = 1024;
inline constexpr std::size_t max_listing_bytes = std::size_t{16} << 20;
inline constexpr std::size_t max_manifest_bytes =
    checkpoint::largest_layout + max_metadata_bytes + (std::size_t{64} << 20);

struct attach_request {
  std::string name;
  std::uint64_t generation = 0;
  std::array<unsigned char, 16> device{};
  std::uint64_t page_bytes = 0;
  std::chrono::milliseconds wait{0};  // for somebody to publish the name
  bool claim = false;                 // to be told to publish it, where nobody else was
  image::sha256 id{};                 // with neither it nor a generation: the newest
};
struct withdraw_request {
  std::string name;
};
struct generation_reply {
  std::uint64_t generation = 0;
};
using listing = std::vector<held_publication>;

std::vector<std::byte> encode(const attach_request &m);
std::vector<std::byte> encode(const withdraw_request &m);
std::vector<std::byte> encode(const generation_reply &m);
std::vector<std::byte> encode(const listing &m);
std::vector<std::byte> encode_version();
// The body of `attached`: the generation, and an encoded manifest.
std::vector<std::byte> encode_attached(std::uint64_t generation,
                                       std::span<const std::byte> manifest);

// Errors: corrupt, not_supported (a request of another version: value, limit = ours).
template <class Message>
result<Message> decode(std::span<const std::byte> from);
status decode_version(std::span<const std::byte> from);
struct attached_reply {
  std::uint64_t generation;
  publication::manifest manifest;
};
result<attached_reply> decode_attached(std::span<const std::byte> from);
// A manifest as publish carries it, behind the version.
std::vector<std::byte> encode_publish(const manifest &m);
result<std::span<const std::byte>> manifest_of_publish(std::span<const std::byte> from);

// One end of a connection. Threads: externally synchronised.
class message_stream {
 public:
  message_stream(checkpoint::socket_channel &with, std::chrono::milliseconds timeout,
                 std::stop_token stop)
      : with_(with), timeout_(bounded(timeout)), stop_(std::move(stop)) {}

  status send(kind k, std::span<const std::byte> body = {}, std::span<const int> fds = {});
  // Sends descriptors in full batches; the last one may be smaller.
  status send_pages(std::span<const int> fds);
  // Errors: corrupt (a message of another kind, or another number of descriptors), an error of the peer,
  //         busy (not within `timeout`, or the stream's).
  result<checkpoint::socket_message> receive(kind k, std::size_t limit, std::size_t min_fds = 0,
                                             std::size_t max_fds = 0);
  // One of two kinds.
  result<checkpoint::socket_message> receive(kind k, kind other, std::size_t limit,
                                             std::chrono::milliseconds timeout);
  // Calls take(fds) until `pages` have come.
  status receive_pages(std::size_t pages,
                       const std::function<status(std::vector<owned_fd> &)> &take);
  // Tells the peer, if it still listens.
  void refuse(const error &e) noexcept;

 private:
  result<checkpoint::socket_message> next(std::size_t limit, std::chrono::milliseconds timeout);

  checkpoint::socket_channel &with_;
  const std::chrono::milliseconds timeout_;
  const std::stop_token stop_;
};

}  // namespace stillmap::publication
