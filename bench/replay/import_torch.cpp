// PyTorch's memory snapshots as traces.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bench/replay/import_trace.h"
#include "bench/replay/internal/failure.h"
#include "bench/replay/internal/stream_numbers.h"
#include "bench/replay/internal/torch_heap.h"
#include "bench/replay/pickle_reader.h"
#include "stillmap/allocators/trace/trace.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::replay {
namespace {

// Requests that failed are described from the last on. Each description costs as much as the heap has
// blocks, and a program that tries sizes until one fits has thousands.
constexpr std::size_t most_described_failures = 64;

// Looks at the values of a snapshot. One that is small refers to the same object again and again, and
// costs as much as one that contains it as often, so the looks are counted.
class snapshot_reader {
 public:
  static constexpr std::uint64_t looks_per_operation = 64;
  explicit snapshot_reader(const pickle &of) : left_(looks_per_operation * of.operations()) {}

  bool exhausted() const { return left_ == 0; }
  const pickle_value *find(const pickle_value &of, std::string_view key) {
    const std::uint64_t cost = 1 + of.items.size();
    left_ -= std::min(left_, cost);
    return exhausted() ? nullptr : of.find(key);
  }
  std::optional<std::uint64_t> number_of(const pickle_value &of, std::string_view key) {
    const pickle_value *const v = find(of, key);
    if (v == nullptr || v->kind != pickle_kind::integer) return std::nullopt;
    return static_cast<std::uint64_t>(v->integer);
  }
  const pickle_value *list_of(const pickle_value &of, std::string_view key) {
    const pickle_value *const v = find(of, key);
    return v != nullptr && v->kind == pickle_kind::list ? v : nullptr;
  }

 private:
  std::uint64_t left_;
};

tl::unexpected<error> refers_too_often(const std::string &file) {
  return fail(errc::invalid_argument,
              fmt::format("{}: it refers to the same objects again and again: {} times what it "
                          "contains",
                          file, snapshot_reader::looks_per_operation));
}

std::optional<torch_action> action_of(std::string_view name) {
  constexpr std::pair<std::string_view, torch_action> known[] = {
      {"alloc", torch_action::alloc},
      {"free_requested", torch_action::free_requested},
      {"free_completed", torch_action::free_completed},
      {"segment_alloc", torch_action::map},
      {"segment_map", torch_action::map},
      {"segment_free", torch_action::unmap},
      {"segment_unmap", torch_action::unmap},
      {"oom", torch_action::oom},
  };
  for (const auto &[text, action] : known) {
    if (text == name) return action;
  }
  return std::nullopt;
}

// What changed memory, and what failed; other events are left out.
result<std::vector<torch_event>> events_of(const std::string &file, snapshot_reader &reader,
                                           const pickle_value &history) {
  std::vector<torch_event> events;
  for (std::size_t i = 0; i < history.items.size(); ++i) {
    const auto wrong = [&](const std::string &what) {
      return fail(errc::invalid_argument, fmt::format("{}: event {}: {}", file, i, what));
    };
    const pickle_value &e = *history.items[i];
    const pickle_value *const name = reader.find(e, "action");
    if (reader.exhausted()) return refers_too_often(file);
    if (name == nullptr || name->kind != pickle_kind::text) return wrong("it has no action");
    const auto action = action_of(name->text);
    if (!action) continue;
    // Without the requests of the program the trace is another; the rest only describes failures.
    const bool of_program =
        *action == torch_action::alloc || *action == torch_action::free_requested;
    const auto at = reader.number_of(e, *action == torch_action::oom ? "device_free" : "addr"),
               bytes = reader.number_of(e, "size"), on = reader.number_of(e, "stream");
    if (reader.exhausted()) return refers_too_often(file);
    if (of_program) {
      if (!at || !bytes || !on) return wrong("no addr, size and stream");
      if (*bytes > trace_max_bytes) return wrong(fmt::format("a size of {}", *bytes));
    }
    if (!bytes || *bytes == 0 || *bytes > trace_max_bytes) continue;
    if (*action != torch_action::oom && !at) continue;
    events.push_back({*action, at.value_or(0), *bytes, on.value_or(0)});
  }
  return events;
}

struct snapshot_block {
  std::uint64_t at = 0, bytes = 0, requested = 0, stream = 0;
  bool allocated = false;  // and not only in use by work that is queued
};

// Calls segment(at, bytes) for each segment of a device at the end, and block(snapshot_block) for each
// block in it that is in use.
template <class Segment, class Block>
void each_segment(snapshot_reader &reader, const pickle_value &root, std::size_t device,
                  Segment &&segment_found, Block &&block_found) {
  const pickle_value *const segments = reader.list_of(root, "segments");
  if (segments == nullptr) return;
  for (const pickle_value *segment : segments->items) {
    const pickle_value *const blocks = reader.list_of(*segment, "blocks");
    const std::uint64_t of_device = reader.number_of(*segment, "device").value_or(0);
    if (reader.exhausted()) return;
    if (blocks == nullptr || of_device != device) continue;
    std::uint64_t at = reader.number_of(*segment, "address").value_or(0);
    segment_found(at, reader.number_of(*segment, "total_size").value_or(0));
    for (const pickle_value *b : blocks->items) {
      const std::uint64_t size = reader.number_of(*b, "size").value_or(0);
      const pickle_value *const state = reader.find(*b, "state");
      if (reader.exhausted()) return;
      if (state != nullptr && state->text.starts_with("active") && size != 0) {
        block_found(snapshot_block{reader.number_of(*b, "address").value_or(at), size,
                                   reader.number_of(*b, "requested_size").value_or(size),
                                   reader.number_of(*segment, "stream").value_or(0),
                                   state->text == "active_allocated"});
      }
      at += size;
    }
  }
}

// The heap at each request that failed, in the order of the requests: the segments are the heap at the
// end, and the history is undone from there.
std::vector<trace_failure> failures_of(snapshot_reader &reader, const pickle_value &root,
                                       std::size_t device, const std::vector<torch_event> &events) {
  const auto failed = [](const torch_event &e) { return e.action == torch_action::oom; };
  std::vector<trace_failure> out(
      static_cast<std::size_t>(std::count_if(events.begin(), events.end(), failed)));
  if (out.empty()) return out;
  torch_heap heap;
  each_segment(
      reader, root, device,
      [&](std::uint64_t at, std::uint64_t bytes) {
        if (bytes != 0 && bytes <= trace_max_bytes) heap.add_memory(at, bytes);
      },
      [&](const snapshot_block &b) { heap.add_block(b.at, b.bytes); });
  const std::size_t first = out.size() - std::min(out.size(), most_described_failures);
  std::size_t number = out.size();
  for (auto e = events.rbegin(); e != events.rend() && number > first; ++e) {
    heap.undo(*e);
    if (!failed(*e)) continue;
    const trace_failure state = heap.state(e->at);
    if (std::max(state.held, state.device_free) <= trace_max_bytes) out[--number] = state;
  }
  return out;
}

// The trace of one device.
std::string torch_trace(snapshot_reader &reader, const pickle_value &root, std::size_t device,
                        const std::vector<torch_event> &events) {
  const auto of_program = [](const torch_event &e) {
    return e.action == torch_action::alloc || e.action == torch_action::free_requested;
  };
  // Blocks from before the history: those that are freed in it or live after it, but not allocated
  // in it.
  std::unordered_map<std::uint64_t, bool> known;  // address: live
  std::map<std::uint64_t, torch_event> before;
  for (const torch_event &e : events) {
    if (!of_program(e)) continue;
    const bool allocates = e.action == torch_action::alloc;
    const auto found = known.find(e.at);
    if (!allocates && found == known.end()) before.emplace(e.at, e);
    known[e.at] = allocates;
  }
  each_segment(
      reader, root, device, [](std::uint64_t, std::uint64_t) {},
      [&](const snapshot_block &b) {
        if (b.allocated && b.requested != 0 && b.requested <= trace_max_bytes &&
            known.find(b.at) == known.end()) {
          before.emplace(b.at, torch_event{torch_action::alloc, b.at, b.requested, b.stream});
        }
      });

  trace_writer out("from a PyTorch memory snapshot");
  stream_numbers streams;
  std::unordered_map<std::uint64_t, std::uint64_t> live;
  std::uint64_t next = 0;
  const auto allocate = [&](const torch_event &e) {
    live[e.at] = next;
    out.allocate(next++, e.bytes, number_of(streams, e.stream));
  };
  for (const auto &[at, e] : before) allocate(e);
  const std::vector<trace_failure> failures = failures_of(reader, root, device, events);
  std::size_t failed = 0;
  for (const torch_event &e : events) {
    if (e.action == torch_action::oom) {
      out.fail(e.bytes, number_of(streams, e.stream), failures[failed++]);
    }
    if (!of_program(e)) continue;
    const auto found = live.find(e.at);
    if (e.action == torch_action::alloc) {
      // The ring may have lost the free.
      if (found != live.end()) out.free(found->second);
      allocate(e);
    } else if (found != live.end()) {
      out.free(found->second);
      live.erase(found);
    }
  }
  return out.take();
}

}  // namespace

result<std::vector<trace_text>> import_torch_snapshot(const std::string &file,
                                                      std::string_view content) {
  const auto read = pickle::read(content);
  if (!read) return fail(errc::invalid_argument, file + ": " + read.error().detail().cause);
  std::vector<trace_text> out;
  snapshot_reader reader(*read);
  if (const pickle_value *const traces = reader.list_of(read->root(), "device_traces")) {
    for (std::size_t device = 0; device < traces->items.size(); ++device) {
      const pickle_value &history = *traces->items[device];
      if (history.items.empty()) continue;
      STILLMAP_ASSIGN_OR_RETURN(const auto events, events_of(file, reader, history));
      out.push_back({device, torch_trace(reader, read->root(), device, events)});
      if (reader.exhausted()) return refers_too_often(file);
    }
  }
  if (out.empty()) {
    return fail(errc::invalid_argument,
                file + ": it has no history; torch.cuda.memory._record_memory_history begins one");
  }
  return out;
}

}  // namespace stillmap::replay
