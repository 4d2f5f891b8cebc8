#include "bench/replay/import_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <vector>

#include "bench/replay/internal/failure.h"
#include "bench/replay/internal/stream_numbers.h"
#include "stillmap/allocators/trace/trace.h"

namespace stillmap::replay {
namespace {

constexpr std::string_view rmm_header = "Thread,Time,Action,Pointer,Size,Stream";

struct live_block {
  std::uint64_t id = 0;
  std::uint32_t stream = 0;
};

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
  // A pickle: of protocols 2 to 5; of 0 and 1, a dictionary or a list.
  constexpr std::string_view begins = "\x80(}]";
  if (!content.empty() && begins.find(content.front()) != std::string_view::npos) {
    return record_kind::torch_snapshot;
  }
  if (content.starts_with("Thread,")) return record_kind::rmm_log;
  return record_kind::stillmap;
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
    } else if (action == "allocate failure") {
      if (bytes == 0 || bytes > trace_max_bytes) return wrong(fmt::format("a size of {}", bytes));
      out.fail(bytes, number_of(streams, stream), {});
    } else {
      return wrong(fmt::format("'{}' is neither allocate nor free", action));
    }
  }
  return out.take();
}

}  // namespace stillmap::replay
