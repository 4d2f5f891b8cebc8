#include "stillmap/allocators/trace/trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "stillmap/vmm/base/host_memory.h"

namespace stillmap {
namespace {

constexpr std::string_view header = "# stillmap-trace v1";

// A quoted excerpt of a line, without control characters.
std::string quoted(std::string_view line) {
  constexpr std::size_t most = 60;
  std::string out = "'";
  for (const char c : line.substr(0, most)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (line.size() > most ? "...'" : "'");
}

// The form of each line, by its first letter.
constexpr std::array<std::string_view, 6> forms = {
    "a,<id>,<bytes>,<stream>",
    "f,<id>",
    "u,<id>,<stream>",
    "s,<from>,<to>",
    "i",
    "o,<bytes>,<stream>,<held>,<device free>,<cached>,<pieces>,<largest>"};
constexpr std::size_t most_numbers = 7;

struct block_state {
  std::uint64_t block = 0;
  std::uint64_t bytes = 0;
  std::size_t line = 0;  // the line of its last `a` or `f`
  bool live = false;
};

class reader {
 public:
  result<trace> read(std::string_view text) {
    while (!text.empty()) {
      ++line_;
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line_ == 1) {
        if (std::string wrong = check_header(line); !wrong.empty()) return malformed(wrong);
        continue;
      }
      if (line.empty() || line.front() == '#') continue;
      if (std::string wrong = take(line); !wrong.empty()) {
        return malformed(quoted(line) + ": " + wrong);
      }
    }
    if (line_ == 0) {
      line_ = 1;
      return malformed("the file is empty; a trace begins with '" + std::string(header) + "'");
    }
    out_.totals.live_bytes = live_bytes_;
    out_.totals.live_blocks = live_blocks_;
    return std::move(out_);
  }

 private:
  tl::unexpected<error> malformed(std::string cause) const {
    const error e = make_error(errc::invalid_argument, "the trace is malformed").value();
    return tl::unexpected<error>(
        e.with({.where = "line " + std::to_string(line_), .cause = std::move(cause)}));
  }

  static std::string check_header(std::string_view line) {
    if (line == header) return "";
    if (line.starts_with(header.substr(0, header.size() - 1))) {
      return quoted(line) + ": this version of the format is not known; v1 is";
    }
    return quoted(line) + ": a trace begins with '" + std::string(header) + "'";
  }

  // Parses a line. Returns what is wrong with it; empty: the event was added.
  std::string take(std::string_view line) {
    const char verb = line.front();
    const auto *const form = std::find_if(
        forms.begin(), forms.end(), [&](std::string_view known) { return known.front() == verb; });
    if (form == forms.end()) return "a line begins with a, f, u, s, i, o or #";
    const auto wrong_form = [&] { return "write it as " + std::string(*form); };
    std::uint64_t numbers[most_numbers] = {};
    const auto wanted = static_cast<std::size_t>(std::count(form->begin(), form->end(), ','));
    std::string_view rest = line.substr(1);
    for (std::size_t i = 0; i < wanted; ++i) {
      if (!rest.starts_with(',')) return wrong_form();
      rest.remove_prefix(1);
      const char *const begin = rest.data(), *const end = begin + rest.size();
      const auto [stop, code] = std::from_chars(begin, end, numbers[i]);
      if (code == std::errc::result_out_of_range) return "a number is over 2^64 - 1";
      if (code != std::errc()) return wrong_form();
      rest.remove_prefix(static_cast<std::size_t>(stop - begin));
    }
    if (!rest.empty()) return wrong_form();
    switch (verb) {
      case 'a':
        return allocate(numbers[0], numbers[1], numbers[2]);
      case 'f':
        return free(numbers[0]);
      case 'u':
        return use(numbers[0], numbers[1]);
      case 's':
        return wait(numbers[0], numbers[1]);
      case 'o':
        return fail(numbers[0], numbers[1],
                    {numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]});
      default:
        ++out_.totals.iterations;
        out_.events.push_back({});
        return "";
    }
  }

  std::string stream(std::uint64_t number, std::uint32_t &into) {
    if (number >= trace_max_streams) {
      return "stream " + std::to_string(number) + " is over the limit of " +
             std::to_string(trace_max_streams - 1);
    }
    into = static_cast<std::uint32_t>(number);
    out_.totals.streams = std::max(out_.totals.streams, into + 1);
    return "";
  }

  static std::string size(std::uint64_t bytes) {
    if (bytes == 0) return "a block has at least 1 byte";
    return bytes > trace_max_bytes ? "a block has at most 2^48 bytes" : "";
  }

  std::string allocate(std::uint64_t id, std::uint64_t bytes, std::uint64_t on) {
    trace_event e{.verb = trace_verb::allocate};
    if (std::string wrong = size(bytes); !wrong.empty()) return wrong;
    if (std::string wrong = stream(on, e.stream); !wrong.empty()) return wrong;
    block_state &b = ids_[id];
    if (b.live) {
      return "block " + std::to_string(id) + " is live: it was allocated on line " +
             std::to_string(b.line);
    }
    e.block = out_.totals.blocks++;
    e.bytes = bytes;
    b = {e.block, bytes, line_, true};
    live_bytes_ += bytes;
    ++live_blocks_;
    out_.totals.peak_live_bytes = std::max(out_.totals.peak_live_bytes, live_bytes_);
    out_.events.push_back(e);
    return "";
  }

  // The live block of an id; nullptr sets `wrong`.
  block_state *find(std::uint64_t id, std::string &wrong) {
    const auto at = ids_.find(id);
    if (at == ids_.end()) {
      wrong = "there is no block " + std::to_string(id);
      return nullptr;
    }
    if (at->second.live) return &at->second;
    wrong = "block " + std::to_string(id) + " was freed on line " + std::to_string(at->second.line);
    return nullptr;
  }

  std::string free(std::uint64_t id) {
    std::string wrong;
    block_state *const b = find(id, wrong);
    if (b == nullptr) return wrong;
    out_.events.push_back({.verb = trace_verb::free, .block = b->block});
    live_bytes_ -= b->bytes;
    --live_blocks_;
    b->live = false;
    b->line = line_;
    return "";
  }

  std::string use(std::uint64_t id, std::uint64_t on) {
    trace_event e{.verb = trace_verb::use};
    if (std::string wrong = stream(on, e.stream); !wrong.empty()) return wrong;
    std::string wrong;
    const block_state *const b = find(id, wrong);
    if (b == nullptr) return wrong;
    e.block = b->block;
    out_.events.push_back(e);
    return "";
  }

  std::string wait(std::uint64_t from, std::uint64_t to) {
    trace_event e{.verb = trace_verb::wait};
    if (from == to) return "a stream does not wait for itself";
    if (std::string wrong = stream(from, e.stream); !wrong.empty()) return wrong;
    if (std::string wrong = stream(to, e.waits); !wrong.empty()) return wrong;
    out_.events.push_back(e);
    return "";
  }

  std::string fail(std::uint64_t bytes, std::uint64_t on, const trace_failure &of) {
    trace_event e{.verb = trace_verb::fail, .block = out_.failures.size(), .bytes = bytes};
    if (std::string wrong = size(bytes); !wrong.empty()) return wrong;
    if (std::string wrong = stream(on, e.stream); !wrong.empty()) return wrong;
    // So that a sum of them does not overflow.
    if (std::max({of.held, of.device_free, of.cached, of.largest}) > trace_max_bytes) {
      return "a device has at most 2^48 bytes";
    }
    out_.failures.push_back(of);
    out_.events.push_back(e);
    return "";
  }

  trace out_;
  std::unordered_map<std::uint64_t, block_state> ids_;
  std::uint64_t live_bytes_ = 0, live_blocks_ = 0;
  std::size_t line_ = 0;
};

}  // namespace

result<trace> read_trace(std::string_view text) {
  return with_host_memory("read_trace", [&] { return reader().read(text); });
}

trace_writer::trace_writer(std::string_view about) {
  text_ = header;
  text_ += '\n';
  if (!about.empty()) comment(about);
}

void trace_writer::line(char verb, std::initializer_list<std::uint64_t> numbers) {
  char buffer[4 + most_numbers * 21];
  char *at = buffer;
  *at++ = verb;
  for (const std::uint64_t number : numbers) {
    *at++ = ',';
    at = std::to_chars(at, buffer + sizeof(buffer) - 1, number).ptr;
  }
  *at++ = '\n';
  text_.append(buffer, static_cast<std::size_t>(at - buffer));
}

void trace_writer::allocate(std::uint64_t id, std::uint64_t bytes, std::uint32_t stream) {
  line('a', {id, bytes, stream});
}
void trace_writer::free(std::uint64_t id) {
  line('f', {id});
}
void trace_writer::use(std::uint64_t id, std::uint32_t stream) {
  line('u', {id, stream});
}
void trace_writer::wait(std::uint32_t from, std::uint32_t to) {
  line('s', {from, to});
}
void trace_writer::iteration() {
  line('i', {});
}

void trace_writer::fail(std::uint64_t bytes, std::uint32_t stream, const trace_failure &of) {
  line('o', {bytes, stream, of.held, of.device_free, of.cached, of.pieces, of.largest});
}

void trace_writer::comment(std::string_view text) {
  for (bool more = true; more;) {
    const std::size_t end = text.find('\n');
    text_ += "# ";
    text_ += text.substr(0, end);
    text_ += '\n';
    more = end != std::string_view::npos;
    if (more) text.remove_prefix(end + 1);
  }
}

std::string trace_writer::take() {
  return std::exchange(text_, {});
}

std::string to_text(const trace &t, std::string_view comment) {
  trace_writer out(comment);
  for (const trace_event &e : t.events) {
    if (e.verb == trace_verb::allocate) out.allocate(e.block, e.bytes, e.stream);
    if (e.verb == trace_verb::free) out.free(e.block);
    if (e.verb == trace_verb::use) out.use(e.block, e.stream);
    if (e.verb == trace_verb::wait) out.wait(e.stream, e.waits);
    if (e.verb == trace_verb::iteration) out.iteration();
    if (e.verb == trace_verb::fail) out.fail(e.bytes, e.stream, t.failures[e.block]);
  }
  return out.take();
}

}  // namespace stillmap
