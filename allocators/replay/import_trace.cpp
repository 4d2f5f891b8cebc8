#include "stillmap/allocators/replay/import_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "stillmap/allocators/replay/internal/failure.h"
#include "stillmap/allocators/replay/pickle_reader.h"
#include "stillmap/allocators/trace/trace.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::replay {
namespace {

constexpr std::string_view rmm_header = "Thread,Time,Action,Pointer,Size,Stream";

// Numbers streams in the order in which they appear.
using stream_numbers = std::map<std::uint64_t, std::uint32_t>;
std::uint32_t number_of(stream_numbers &known, std::uint64_t stream) {
  return known.emplace(stream, static_cast<std::uint32_t>(known.size())).first->second;
}

struct live_block {
  std::uint64_t id = 0;
  std::uint32_t stream = 0;
};

struct torch_event {
  bool allocates = false;
  std::uint64_t at = 0, bytes = 0, stream = 0;
};

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

// The requests of the program; the actions of its allocator are left out.
result<std::vector<torch_event>> events_of(const std::string &file, snapshot_reader &reader,
                                           const pickle_value &history) {
  std::vector<torch_event> events;
  for (std::size_t i = 0; i < history.items.size(); ++i) {
    const auto wrong = [&](const std::string &what) {
      return fail(errc::invalid_argument, fmt::format("{}: event {}: {}", file, i, what));
    };
    const pickle_value &e = *history.items[i];
    const pickle_value *const action = reader.find(e, "action");
    if (reader.exhausted()) return refers_too_often(file);
    if (action == nullptr || action->kind != pickle_kind::text) return wrong("it has no action");
    const bool allocates = action->text == "alloc";
    if (!allocates && action->text != "free_requested") continue;
    const auto at = reader.number_of(e, "addr"), bytes = reader.number_of(e, "size"),
               on = reader.number_of(e, "stream");
    if (reader.exhausted()) return refers_too_often(file);
    if (!at || !bytes || !on) return wrong("no addr, size and stream");
    if (*bytes > trace_max_bytes) return wrong(fmt::format("a size of {}", *bytes));
    if (*bytes != 0) events.push_back({allocates, *at, *bytes, *on});
  }
  return events;
}

// Calls found(address, bytes, stream) for each block that is live at the end.
template <class Found>
void each_active_block(snapshot_reader &reader, const pickle_value &root, std::size_t device,
                       Found &&found) {
  const pickle_value *const segments = reader.list_of(root, "segments");
  if (segments == nullptr) return;
  for (const pickle_value *segment : segments->items) {
    const pickle_value *const blocks = reader.list_of(*segment, "blocks");
    const std::uint64_t of_device = reader.number_of(*segment, "device").value_or(0);
    if (reader.exhausted()) return;
    if (blocks == nullptr || of_device != device) continue;
    std::uint64_t at = reader.number_of(*segment, "address").value_or(0);
    for (const pickle_value *b : blocks->items) {
      const std::uint64_t size = reader.number_of(*b, "size").value_or(0);
      const pickle_value *const state = reader.find(*b, "state");
      if (reader.exhausted()) return;
      if (state != nullptr && state->text == "active_allocated" && size != 0) {
        found(reader.number_of(*b, "address").value_or(at),
              reader.number_of(*b, "requested_size").value_or(size),
              reader.number_of(*segment, "stream").value_or(0));
      }
      at += size;
    }
  }
}

// The trace of one device.
std::string torch_trace(snapshot_reader &reader, const pickle_value &root, std::size_t device,
                        const std::vector<torch_event> &events) {
  // Blocks from before the history: those that are freed in it or live after it, but not allocated
  // in it.
  std::unordered_map<std::uint64_t, bool> known;  // address: live
  std::map<std::uint64_t, torch_event> before;
  for (const torch_event &e : events) {
    const auto found = known.find(e.at);
    if (!e.allocates && found == known.end()) before.emplace(e.at, e);
    known[e.at] = e.allocates;
  }
  each_active_block(reader, root, device,
                    [&](std::uint64_t at, std::uint64_t bytes, std::uint64_t stream) {
                      if (bytes != 0 && bytes <= trace_max_bytes && known.find(at) == known.end()) {
                        before.emplace(at, torch_event{true, at, bytes, stream});
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
  for (const torch_event &e : events) {
    const auto found = live.find(e.at);
    if (e.allocates) {
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

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

// Decimal, or hexadecimal after 0x.
bool parse(std::string_view text, std::uint64_t &into) {
  const bool hex = text.starts_with("0x");
  if (hex) text.remove_prefix(2);
  const auto [end, code] =
      std::from_chars(text.data(), text.data() + text.size(), into, hex ? 16 : 10);
  return code == std::errc() && end == text.data() + text.size();
}

}  // namespace

record_kind kind_of(std::string_view content) {
  if (content.starts_with('\x80')) return record_kind::torch_snapshot;
  if (content.starts_with("Thread,")) return record_kind::rmm_log;
  return record_kind::stillmap;
}

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
  if (out.size() == 1) out.front().device.reset();
  return out;
}

result<std::string> import_rmm_log(const std::string &file, std::string_view content) {
  trace_writer out("from a log of RMM");
  stream_numbers streams;
  std::unordered_map<std::uint64_t, live_block> live;
  std::uint64_t next = 0;
  for (std::size_t number = 1; !content.empty(); ++number) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto wrong = [&](const std::string &what) {
      return fail(errc::invalid_argument, fmt::format("{}:{}: {}", file, number, what));
    };
    if (number == 1) {
      if (line != rmm_header) return wrong(fmt::format("the columns are not {}", rmm_header));
      continue;
    }
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = fields_of(line);
    if (fields.size() != 6) return wrong(fmt::format("{} columns instead of 6", fields.size()));
    const std::string_view action = fields[2];
    if (action == "allocate failure") continue;
    std::uint64_t at = 0, bytes = 0, stream = 0;
    if (!parse(fields[3], at)) return wrong(fmt::format("'{}' is no pointer", fields[3]));
    if (!parse(fields[4], bytes)) return wrong(fmt::format("'{}' is no size", fields[4]));
    if (!parse(fields[5], stream)) return wrong(fmt::format("'{}' is no stream", fields[5]));
    const auto found = live.find(at);
    if (action == "allocate") {
      if (bytes == 0) continue;  // a pointer to nothing
      if (bytes > trace_max_bytes) return wrong(fmt::format("a size of {}", bytes));
      if (found != live.end()) return wrong(fmt::format("{} is allocated already", fields[3]));
      live[at] = {next, number_of(streams, stream)};
      out.allocate(next++, bytes, live[at].stream);
    } else if (action == "free") {
      if (bytes == 0) continue;
      if (found == live.end()) return wrong(fmt::format("{} is not allocated", fields[3]));
      const std::uint32_t on = number_of(streams, stream);
      if (on != found->second.stream) out.use(found->second.id, on);
      out.free(found->second.id);
      live.erase(found);
    } else {
      return wrong(fmt::format("'{}' is neither allocate nor free", action));
    }
  }
  return out.take();
}

}  // namespace stillmap::replay
