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

  // Adds an entry, in ascending order of addresses. Requires the ledger's mutex_.
  void add_locked(mapping_entry &e);
  // Adds the contiguous retiring mappings that were retired with `in`, which leave retiring_.
  void take_retiring_locked(mapping_entry &in);

  // Notifies, calls the driver, undoes it on failure, and updates the ledger. Requires no lock. The
  // pages are dropped by the destructor, also without a lock.
  status run();

  // The rest requires that an entry was added, and run() has not succeeded.
  virtual_range range() const { return span_of(*entries_.front(), *entries_.back()); }
  fence idle() const { return entries_.front()->idle; }
  // Returns the entries to retiring_, as the last. Requires the ledger's mutex_.
  void retire_again_locked();

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
  void update_ledger(bool done);
  void set_gone_aside(bool all);
  void notify(backing_event::phase when) const;

  address_space &space_;
  virtual_range forget_;
  list entries_;
  device_address block_end_;  // of the last entry's block
  list gone_;                 // entries that left the ledger; it owns them
};

}  // namespace stillmap
