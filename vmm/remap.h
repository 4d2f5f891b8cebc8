// A plan of mapping changes, made without the driver. address_space::apply performs it completely or
// not at all. New mappings are made before old ones are removed, so that one page can be at two
// addresses in between. docs/remap.md#remap
#pragma once

#include <memory>
#include <vector>

#include "stillmap/vmm/page.h"

namespace stillmap {

// Threads: a plan is externally synchronised; ranges of different plans in flight must not overlap.
// A step that the host has no memory for makes apply() fail with out_of_memory.
class remap_plan {
 public:
  // `access` is what every page mapped by this plan gets.
  explicit remap_plan(std::vector<access_grant> access) noexcept;

  // Maps `p` at `at`. If the same plan unmaps that address, the page there is replaced. The range of a
  // growable_buffer takes no new mapping by a plan: the buffer maps its pages itself.
  void map(device_address at, page_ptr p) noexcept;
  // With its own access.
  void map(device_address at, page_ptr p, std::vector<access_grant> access) noexcept;
  // Maps the pages of `range`, which consists of whole mappings, from `at` on, too: they have both
  // addresses then. Costs less than to ask the ledger for the pages, and does not keep their pools alive.
  void alias(device_address at, virtual_range range) noexcept;
  // Removes whole mappings. Requires: no device work uses them any more (else use retire()).
  void unmap(virtual_range range) noexcept;
  // Unmaps the pages of whole mappings and keeps their places in the ledger, with their access. Until
  // resume, an access to them is a fault. Their owner may unmap them (no driver call is needed) and
  // grow elsewhere; alias, fork, splice, copy on write and a grant are refused as busy. `by` is the id
  // of the caller, not 0; or suspended_for_good. Contents are lost: save them first.
  // Requires: no device work uses the mappings any more.
  void suspend(virtual_range range, std::uint64_t by) noexcept;
  // Maps `p` at a place that `by` suspended, with the access it had.
  void resume(device_address at, page_ptr p, std::uint64_t by) noexcept;
  // Changes the access rights of the mappings in `range`, none of which the plan unmaps.
  void grant(virtual_range range, std::vector<access_grant> access) noexcept;

  bool empty() const {
    return !incomplete_ && !adds_mappings() && unmaps_.empty() && grants_.empty() &&
           suspends_.empty();
  }

 private:
  using access_ptr = std::shared_ptr<const std::vector<access_grant>>;
  friend class remap;
  friend class address_space;
  friend class mapped_buffer;
  struct of_buffer {};  // made by a growable_buffer for its own range
  remap_plan(of_buffer, access_ptr access) noexcept;
  struct map_step {
    device_address at;
    page_ptr page;
    std::size_t access = 0;          // in access_
    std::uint64_t suspended_by = 0;  // not 0: where that one suspended a page
  };
  struct alias_step {
    device_address at;
    virtual_range range;
  };
  struct suspend_step {
    virtual_range range;
    std::uint64_t by;
  };
  struct grant_step {
    virtual_range range;
    std::size_t access;  // in access_
  };
  template <class Add>
  void add(const Add &step) noexcept;
  std::size_t listed(std::vector<access_grant> access);
  bool adds_mappings() const { return !maps_.empty() || !aliases_.empty(); }
  std::vector<access_ptr> access_;  // the plan's own first
  std::vector<map_step> maps_;
  std::vector<alias_step> aliases_;
  std::vector<virtual_range> unmaps_;
  std::vector<grant_step> grants_;
  std::vector<suspend_step> suspends_;
  bool of_buffer_ = false;
  bool incomplete_ = false;  // the host had no memory for a step
};

// address_space::apply(plan):
// Ensures: success: every step done, generation of each touched block up by one. Failure: every
//          mapping, access and generation as before. Should undoing itself be refused by the driver
//          (it failed twice), the ledger shows what is really left and the sink is told.
// Errors:  invalid_argument (a target mapped already, a growable_buffer's, outside any reservation,
//          misaligned; a range
//          that cuts a mapping), busy (a page that is wanted is suspended), address_space_exhausted
//          (mapping ceiling: value, limit), out_of_memory (of the device or the host), device_lost,
//          what the driver says.
// Stream:  host-synchronous.
// Cost:    where there is no room, retiring mappings are waited for and undone, and all is tried
//          once more. Otherwise one map per page, one set-access per contiguous run, one unmap per
//          contiguous run, and the context switch.
// Source:  conformance 27-30, 40-43.

}  // namespace stillmap
