// A device buffer that grows in place: its address stays, pages are mapped at its end (or anywhere in
// its reservation), and growing copies nothing. docs/buffers.md#growable-buffer
//
// On a device without VMM the buffer is one cuMemAlloc allocation: in_place() is false, growing past
// capacity copies the data, and operations that share pages return not_supported.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/buffer_options.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

class buffer_impl;  // internal
namespace detail {
class byte_vector;
}

// Movable owner; not copyable: fork() shares pages, and copying contents is the user's own call.
// Threads: externally synchronised. Mapping ahead in the background is synchronised internally.
// Contexts: any or none may be current on the calling thread; it is left as it was.
// Streams: an operation with a `stream` may order memory it reuses after other work by making that
//   stream wait: new bytes may then be used on that stream, and elsewhere once ordered after it.
//   Without a stream the host waits instead, and they may be used anywhere at once.
// Failure: every operation leaves the buffer as it was.
class growable_buffer {
 public:
  // Cost: one reserve; no memory.
  // Errors: invalid_argument (pools of unequal page size, a device that is no peer: value),
  //         address_space_exhausted, not_supported.
  static result<growable_buffer> create(const stillmap::device &d, buffer_options options = {});

  growable_buffer(growable_buffer &&other) noexcept;
  growable_buffer &operator=(growable_buffer &&other) noexcept;
  // Waits for the device's work (as cuMemFree does) unless close() was called.
  ~growable_buffer();

  // Releases everything once `idle` has passed, without blocking. The buffer is empty afterwards; all
  // other operations on it fail.
  status close(const fence &idle);

  device_address address() const;  // constant for life, unless stats().relocations says otherwise
  void *data() const { return address().pointer(); }
  std::size_t size() const;        // bytes in use
  std::size_t capacity() const;    // bytes mapped from the start without a gap: grow within it free
  std::size_t reserved() const;    // bytes of address space
  std::size_t page_bytes() const;  // unit of committing
  std::size_t mapped_bytes() const;  // committed bytes, anywhere in the reservation
  bool in_place() const;             // false on the copying fallback
  std::uint64_t generation() const;  // rises whenever pages behind it change
  const stillmap::device &device() const { return device_; }
  const std::string &tag() const;  // empty once closed or moved from
  buffer_stats stats() const;

  // Changes size(). Growing maps what is missing; contents up to the old size stay, new bytes are
  // unspecified. Shrinking keeps the pages (see shrink_to_fit).
  // Streams: with one, the host waits for nothing where `stream` can wait instead. Growing past
  //         reserved() may move the pages to other addresses (stats().relocations): the old ones
  //         then stay usable for what `stream` has queued, and for nothing else, so order other
  //         streams' work before it. Without one, the host waits for the device's work instead.
  // Errors: out_of_memory (value = `bytes`, limit = bytes that there were for the buffer: mapped ones and
  //         free ones; before any page is created where the request exceeds the memory of the pools),
  //         address_space_exhausted,
  //         invalid_argument (over the address space: value, limit), device_lost.
  // Cost:   within capacity() none. Otherwise per missing page one map, and a create where the pool
  //         is cold; one set-access in all.  tests/vmm/golden
  status resize(std::size_t bytes);
  status resize(std::size_t bytes, stream_ref stream);

  // Makes capacity() at least `bytes`; size() stays. Errors and cost as resize.
  status reserve(std::size_t bytes);
  status reserve(std::size_t bytes, stream_ref stream);

  // Returns the pages past size() to the pool. Waits for the device's work first, unless a fence is
  // given. Cost: one unmap; no release while the pool keeps the pages.
  status shrink_to_fit();
  status shrink_to_fit(const fence &idle);

  // Sparse use: commits or decommits a range of the reservation, independent of size().
  // Units: bytes, multiples of page_bytes().  Committing twice, or decommitting what is not
  // committed, does nothing. Decommitting below size() is allowed: those bytes are then unmapped.
  // Errors: invalid_argument (not page multiples: limit; outside the reservation), as resize.
  status commit(std::size_t offset, std::size_t bytes);
  status commit(std::size_t offset, std::size_t bytes, stream_ref stream);
  status decommit(std::size_t offset, std::size_t bytes);
  status decommit(std::size_t offset, std::size_t bytes, const fence &idle);
  bool committed(std::size_t offset, std::size_t bytes) const;  // all of it; any byte range

  // Checks that work may read the range, or with access_mode::read_write, write it.
  // Errors: invalid_argument (part of it is not committed: value = its end, limit = capacity()), busy
  //         (suspended: resume its tag; shared by a fork: make_writable()).
  status check_access(access_mode wanted, std::size_t offset, std::size_t bytes) const;

  // ---- contents --------------------------------------------------------------------------------

  // Copies between host memory and [offset, offset + bytes) of the buffer, after the work queued on
  // `stream`. The host waits for the copy; pageable host memory will do.
  // Requires: as check_access().                                                          (checked)
  // Errors:   those of check_access(), the driver's: part of the range may have been copied by then.
  // Stream:   host-synchronous, ordered on `stream`.
  // Cost:     one copy, one stream synchronisation.
  status copy_from_host(std::size_t offset, const void *from, std::size_t bytes, stream_ref stream);
  status copy_to_host(void *to, std::size_t offset, std::size_t bytes, stream_ref stream) const;

  // ---- sharing pages ---------------------------------------------------------------------------

  // A buffer of the same pages at other addresses, `times` in a row: twice makes a ring in which
  // what runs off the end reappears at the start. The pages live as long as either.
  // Requires: the range is committed, in page multiples, and not shared by a fork.  (checked)
  // Errors: invalid_argument, busy (forked), not_supported (fallback), address_space_exhausted.
  // Cost: one reserve, one map per page and time, one set-access.
  result<growable_buffer> alias(std::size_t offset, std::size_t bytes, std::size_t times = 1) const;

  // A copy of the whole buffer that shares every page until one of the two is about to write it:
  // afterwards both are read-only where shared, and a write without make_writable is an access
  // fault. Waits for the device's work (it takes write access away).
  // Errors: as alias; busy (aliased pages cannot be shared by copying; until the fence an alias was
  // closed with has passed, its pages may still count as aliased).
  // Cost: one reserve, one map per page, two set-access.
  result<growable_buffer> fork();

  // Makes a byte range writable: pages still shared are copied to pages of its own, on `stream`, at
  // the same address; the host waits for that. Pages no longer shared only get write access back.
  // Errors: as resize; invalid_argument (not committed).
  status make_writable(std::size_t offset, std::size_t bytes, stream_ref stream);

  // Moves pages, not bytes: the range leaves this buffer and appears in `to` at `to_offset`, whose
  // pages there must not be committed. Same page size, same device. Size() of both stays.
  // `idle`: when device work no longer touches the old addresses. Without: it waits for the device.
  // Errors: invalid_argument, busy (forked or aliased, as for fork), not_supported (fallback).
  // Cost: one map per page, one set-access, one unmap (later, when `idle` has not passed).
  status splice(std::size_t offset, std::size_t bytes, growable_buffer &to, std::size_t to_offset);
  status splice(std::size_t offset, std::size_t bytes, growable_buffer &to, std::size_t to_offset,
                const fence &idle);

  // The whole space it may use: [address(), address() + reserved()).
  virtual_range range() const { return {address(), reserved()}; }

 private:
  explicit growable_buffer(std::unique_ptr<buffer_impl> i);
  template <class Copy>
  status copy(access_mode wanted, std::size_t offset, std::size_t bytes, stream_ref stream,
              const Copy &copy) const;
  stillmap::device device_;
  std::unique_ptr<buffer_impl> impl_;  // empty once closed or moved from
};

}  // namespace stillmap
