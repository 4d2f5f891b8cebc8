#include "stillmap/vmm/exportability.h"

#include <algorithm>
#include <map>
#include <new>
#include <vector>

#include "stillmap/vmm/address_space.h"

namespace stillmap {
namespace {

const char *word(sharing_verdict verdict) {
  constexpr const char *words[] = {"works", "in parts", "refused"};  // in the order of the type
  return words[static_cast<std::size_t>(verdict)];
}

// Reads the ledger of one range and derives the verdicts.
class examiner {
 public:
  examiner(const device &d, virtual_range range) : device_(d) { report_.range = range; }

  exportability_report run() {
    gather();
    report_.answers = {legacy_ipc(), by_handle(sharing::posix_fd, handle_type::posix_fd),
                       by_handle(sharing::fabric, handle_type::fabric), rdma()};
    return std::move(report_);
  }

 private:
  void gather() {
    const virtual_range range = report_.range;
    if (const auto block = device_.space().block_at(range.begin)) {
      report_.generation = block->generation();
    }
    device_address next = range.begin;
    for (mapping_record &m : device_.space().mappings(range)) {
      const device_address begin = std::max(m.range.begin, range.begin);
      const device_address end = std::min(m.range.end(), range.end());
      if (next < begin) missing(next, begin - next);
      next = end;
      if (m.range.begin < range.begin || m.range.end() > range.end()) report_.cut = true;
      if (m.suspended_by != 0) {
        missing(begin, end - begin);
        continue;
      }
      if (!m.backing) {
        report_.fallback_bytes += end - begin;
      } else if (m.state == mapping_state::retiring) {
        report_.retiring_bytes += end - begin;
        if (!retiring_at_) retiring_at_ = begin;
        continue;
      } else {
        report_.mapped_bytes += end - begin;
        if (m.backing->imported()) ++report_.imported;
      }
      pieces_.push_back(std::move(m));
    }
    if (next < range.end()) missing(next, range.end() - next);
    report_.mappings = pieces_.size();
    count_aliases();
  }

  // Also counts mappings outside of the range: a write to the range changes their memory.
  void count_aliases() {
    if (report_.mapped_bytes == 0) return;
    std::map<std::uint64_t, std::size_t> addresses;
    for (const mapping_record &m : device_.space().mappings()) {
      if (m.backing && m.state == mapping_state::mapped) ++addresses[m.backing->id()];
    }
    for (const mapping_record &m : pieces_) {
      if (m.backing && addresses[m.backing->id()] > 1) ++report_.aliased;
    }
  }

  void missing(device_address at, std::size_t bytes) {
    if (report_.missing_bytes == 0) missing_at_ = at;
    report_.missing_bytes += bytes;
  }

  static sharing_answer no(sharing how, const char *reason, const char *advice,
                           device_address at = {}) {
    return {how, sharing_verdict::refused, reason, advice, at};
  }
  sharing_answer yes(sharing how, const char *reason, const char *advice) const {
    return {how, sharing_verdict::works, reason, advice, report_.range.begin};
  }
  sharing_answer parts(sharing how, const char *reason, const char *advice) const {
    return {how, sharing_verdict::in_parts, reason, advice, pieces_[1].range.begin};
  }

  // The obstacle that all ways of sharing have in common. Empty reason: none.
  sharing_answer common(sharing how) const {
    if (report_.range.empty()) return no(how, "the range is empty", "");
    if (pieces_.empty() && report_.retiring_bytes == 0) {
      return no(how, "nothing in the range is in this device's ledger",
                "check the address, and that it belongs to this device", report_.range.begin);
    }
    if (report_.retiring_bytes != 0) {
      return no(how, "part of the range was given back and is waiting to be unmapped",
                "share only what is committed", retiring_at_);
    }
    if (report_.missing_bytes != 0) {
      return no(how, "part of the range has nothing behind it",
                "commit it first, or share the committed parts one by one", missing_at_);
    }
    return no(how, "", "");
  }

  template <class Bad>
  const mapping_record *first(Bad bad) const {
    const auto it = std::find_if(pieces_.begin(), pieces_.end(), bad);
    return it == pieces_.end() ? nullptr : &*it;
  }
  static bool paged(const mapping_record &m) { return static_cast<bool>(m.backing); }
  static bool unpaged(const mapping_record &m) { return !paged(m); }

  // conformance 57, 58
  sharing_answer legacy_ipc() const {
    constexpr sharing how = sharing::legacy_ipc;
    if (sharing_answer a = common(how); *a.reason != '\0') return a;
    if (const auto *m = first(paged)) {
      return no(how, "mapped pages have no legacy IPC handle, on any driver",
                "export file descriptors, or make the buffer with force_copying", m->range.begin);
    }
    if (pieces_.size() > 1) {
      return parts(how, "the range covers several allocations", "one handle for each");
    }
    return report_.cut ? yes(how, "it is part of one allocation",
                             "the handle opens the whole allocation; send the offset too")
                       : yes(how, "it is one allocation", "");
  }

  // conformance 49
  sharing_answer by_handle(sharing how, handle_type type) const {
    const bool fabric = type == handle_type::fabric;
    if (sharing_answer a = common(how); *a.reason != '\0') return a;
    if (const auto *m = first(unpaged)) {
      return no(how, "memory of cuMemAlloc has no such handle",
                device_.capabilities().vmm
                    ? "make the buffer without force_copying, from an exportable pool"
                    : "legacy IPC is what this device has",
                m->range.begin);
    }
    if (!(fabric ? device_.capabilities().fabric_export : device_.capabilities().posix_fd_export)) {
      return no(how,
                fabric ? "this device did not export a fabric handle when it was probed"
                       : "this device did not export a file descriptor when it was probed",
                fabric ? "file descriptors, within one machine" : "copy through host memory",
                report_.range.begin);
    }
    if (const auto *m = first([](const auto &p) { return p.backing->imported(); })) {
      return no(how, "part of it was imported: its pages are another process's to export",
                "let the process that made them export them", m->range.begin);
    }
    if (const auto *m =
            first([&](const auto &p) { return p.backing->properties().exportable != type; })) {
      return no(how, "part of its pages were not created exportable this way",
                "give the buffer a pool with page_pool_options::exportable set", m->range.begin);
    }
    if (report_.cut) {
      return no(how, "the range begins or ends inside a page, and a handle is a whole page",
                "share the whole pages around it and send the offset", report_.range.begin);
    }
    return pieces_.size() == 1
               ? yes(how, "it is one page", "")
               : parts(how, "a handle is one page", "one handle per page, in address order");
  }

  sharing_answer rdma() const {
    constexpr sharing how = sharing::rdma;
    if (sharing_answer a = common(how); *a.reason != '\0') return a;
    const auto incapable = [](const auto &p) { return p.backing && !p.backing->properties().rdma; };
    if (first(paged) != nullptr && !device_.capabilities().rdma) {
      return no(how, "this device did not map an RDMA-capable page when it was probed",
                "stage through pinned host memory", first(paged)->range.begin);
    }
    if (const auto *m = first(incapable)) {
      return no(how, "part of its pages were not created RDMA-capable",
                "give the buffer a pool with page_pool_options::rdma set", m->range.begin);
    }
    if (pieces_.size() == 1) {
      return yes(how, "it is one allocation", "register again when its generation rises");
    }
    // conformance 54: the enclosing allocation of an address is one mapping.
    return parts(how, "a library that asks for the enclosing allocation finds the first page only",
                 "register mapping by mapping, or use larger pages; again when the generation "
                 "rises");
  }

  device device_;
  exportability_report report_;
  std::vector<mapping_record> pieces_;  // mapped or allocated memory
  device_address missing_at_, retiring_at_;
};

}  // namespace

const char *name_of(sharing how) noexcept {
  switch (how) {
    case sharing::legacy_ipc:
      return "legacy IPC";
    case sharing::posix_fd:
      return "file descriptors";
    case sharing::fabric:
      return "fabric handles";
    case sharing::rdma:
      return "RDMA";
  }
  return "?";
}

std::string exportability_report::text() const {
  std::string out;
  for (const sharing_answer &a : answers) {
    out += std::string(name_of(a.how)) + ": " + word(a.verdict) + ": " + a.reason;
    if (*a.advice != '\0') out += std::string("; ") + a.advice;
    out += '\n';
  }
  return out;
}

exportability_report report_exportability(const device &d, virtual_range range) {
  try {
    return examiner(d, range).run();
  } catch (const std::bad_alloc &) {
    exportability_report unknown;
    unknown.range = range;
    for (std::size_t i = 0; i < sharing_count; ++i) {
      unknown.answers[i] = {static_cast<sharing>(i), sharing_verdict::refused,
                            "the host has no memory left to examine it", "try again", range.begin};
    }
    return unknown;
  }
}

}  // namespace stillmap
