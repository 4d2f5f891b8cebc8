// Memory that another process has published, mapped read-only here. docs/publication.md
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/publication/publication.h"

namespace stillmap::publication {

class attached_core;  // internal

struct attach_options : client_options {
  // Which generation of the name: by its number or by the id of its contents; neither: the newest.
  std::uint64_t generation = 0;
  image::sha256 id;
  checkpoint::placement where = checkpoint::placement::same;
  // In place of `where`, the address of each block of the publication; 0, and those beyond the end: anywhere.
  // Empty: `where` holds.
  std::vector<device_address> addresses;
  // How long to wait until somebody publishes the name.
  std::chrono::milliseconds wait{0};
  // Compares the contents with the publisher's digests, on the device.
  bool verify = false;
};

// Owner of the mappings, and of the lease: while it lives the holder lists this process as a reader, and
// keeps the generation, so that whoever is started again finds it. The mappings need no holder: they
// stay if it ends.
// The ledger has the blocks under the publisher's tags, as memory of another process.
// Threads: externally synchronised.
class attached_memory {
 public:
  attached_memory(attached_memory &&) noexcept;
  // By swapping: the destructor of `o` releases the memory that was here.
  attached_memory &operator=(attached_memory &&o) noexcept;
  // Unless release() was called, waits for the device first, as cuMemFree does.
  ~attached_memory();

  std::uint64_t generation() const;
  const manifest &published() const;                // as published: name, metadata, digests
  const checkpoint::memory_layout &layout() const;  // as mapped here
  const stillmap::device &device() const;
  // Whole blocks of this tag, in address order.
  std::vector<virtual_range> tagged(std::string_view tag) const { return layout().tagged(tag); }
  // Of the pages that this process shares, and of those it has copies of; 0 after release().
  std::size_t shared_bytes() const;
  std::size_t private_bytes() const;

  // Gives this process copies of the pages that the range touches, which the device may write, at the same
  // addresses. Pages that it has copies of already, and addresses without a page, are left as they are. A page with
  // several addresses is copied once, and is private at all of them.
  // Requires: no device work that was queued on other streams than `stream` writes to it.
  // Ensures:  failure: nothing changed.
  // Errors:   invalid_argument (not inside one block: value = the address; after release()), busy (part of it is suspended),
  //           out_of_memory, the driver's.
  // Stream:   copies on `stream`, and waits for the device, as the old pages are unmapped.
  // Cost:     one create, two maps and one copy a page; one unmap and one set-access a contiguous run.
  status make_writable(virtual_range range, stream_ref stream);

  // Unmaps everything once `idle` has passed, and ends the lease. Errors: the first of the driver's;
  // everything else is released nevertheless.
  status release(const fence &idle);

 private:
  friend class reader;
  explicit attached_memory(std::unique_ptr<attached_core> c) noexcept;
  std::unique_ptr<attached_core> core_;
};

// Maps what is published under a name at the addresses that the publisher has it at (or elsewhere:
// options.where), read-only for the device.
// Ensures: success: every page is mapped. Failure: none is.
// Errors:  invalid_argument (nothing is published under the name, or not this generation; it was published on
//          another device), busy (nobody published the name in time; an address is in use: value = the address, see
//          checkpoint::find_mapping_owner(); the holder does not answer), corrupt (an invalid message or page; contents that
//          differ from their digest: value = the address), not_supported (verify without digests; a device without
//          VMM), operation_canceled, an error of the holder, the system's, the driver's.
// Cost:    one reserve a block, one import and one map a page, one set-access a contiguous run.
result<attached_memory> attach(const device &d, const std::string &address, const std::string &name,
                               const attach_options &options = {});

// Attaches what a layout refers to, each block at its address there: the layout of a snapshot that was restored, or of
// memory that was handed over or migrated here (restored_memory::layout().published). Generations are found by the
// ids of their contents. Blocks of a publication that the layout does not have are mapped anywhere.
// Ensures: success: one result for each publication. Failure: none is attached.
// Errors:  as attach(); invalid_argument (a reference to a block that the publication does not have).
result<std::vector<attached_memory>> attach(
    const device &d, const std::string &address,
    std::span<const checkpoint::published_reference> references,
    const attach_options &options = {});

// The right to publish a name first: meanwhile the holder lets others that want to attach or claim wait.
// Given up by its destructor, or if this process dies. Threads: externally synchronised.
class claim {
 public:
  claim(claim &&) noexcept;
  claim &operator=(claim &&) noexcept;
  ~claim();
  const std::string &name() const;

  // As publish(), for the claimed name. The claim ends, also on failure.
  result<published_memory> publish(const device &d, std::span<const std::string> tags,
                                   const publish_options &options = {}) &&;

 private:
  friend class reader;
  claim(checkpoint::socket_channel with, std::string name) noexcept;
  checkpoint::socket_channel holder_;
  std::string name_;
};

// Attaches if the name is published. If not, one of those that ask is told to publish it: it gets the claim;
// the others wait until it has, for options.wait.
// Errors: as attach().
result<std::variant<attached_memory, claim>> attach_or_claim(const device &d,
                                                             const std::string &address,
                                                             const std::string &name,
                                                             const attach_options &options = {});

}  // namespace stillmap::publication
