// Unmaps entries of the ledger that no other operation works on, all or none. It takes no host memory:
// the entries carry its list.
#pragma once

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/internal/ledger.h"

namespace stillmap {

class removal {
 public:
  // On success, suspended places in `forget` are given up, too.
  explicit removal(address_space &space, virtual_range forget = {})
      : space_(space), forget_(forget) {}
  removal(const removal &) = delete;
  ~removal();

  // Adds an entry, in ascending order of addresses. `space` is the removal's own, here and below: given
  // again because clang knows the lock that the caller holds by that name.
  void add_locked(const address_space &space, mapping_entry &e) STILLMAP_REQUIRES(space.mutex_);
  // Adds the contiguous retiring mappings that were retired with `in`, which leave retiring_.
  void take_retiring_locked(address_space &space, mapping_entry &in)
      STILLMAP_REQUIRES(space.mutex_);

  // Notifies, calls the driver, undoes it on failure, and updates the ledger. The pages are
  // dropped by the destructor, also without the ledger's lock.
  status run() STILLMAP_EXCLUDES(space_.mutex_);

  // The rest requires that an entry was added, and run() has not succeeded.
  virtual_range range() const { return span_of(*entries_.front(), *entries_.back()); }
  fence idle() const { return entries_.front()->idle; }
  // Returns the entries to retiring_, as the last.
  void retire_again_locked(address_space &space) STILLMAP_REQUIRES(space.mutex_);

 private:
  using entry = mapping_entry;
  using list = mapping_list;

  static virtual_range span_of(const entry &first, const entry &last) {
    return {first.range.begin, last.range.end() - first.range.begin};
  }
  static bool follows(const entry &e, const entry &next) {
    return !next.first_of_block && e.range.end() == next.range.begin;
  }
  template <class Alike>
  static entry &end_of_run(entry &first, const entry *stop, Alike alike);
  const stillmap::driver &driver() const;
  status unmap_all();
  void undo(const entry &stop);
  void update_ledger(bool done) STILLMAP_EXCLUDES(space_.mutex_);
  void set_gone_aside(bool all);
  void notify(backing_event::phase when) const STILLMAP_EXCLUDES(space_.mutex_);

  address_space &space_;
  virtual_range forget_;
  list entries_;
  device_address block_end_;  // of the last entry's block
  list gone_;                 // entries that left the ledger; it owns them
};

}  // namespace stillmap
