// The table for a terminal: a grid of medians for each variable, then the facts.
#include <algorithm>
#include <map>
#include <set>

#include "bench/costs/table.h"

namespace stillmap::costs {
namespace {

constexpr struct {
  const char *against, *title;
} groups[] = {
    {against::nothing, "calls that know no size"},
    {against::size, "against bytes of memory"},
    {against::touched, "against bytes that are written and read"},
    {against::adjacent, "against neighbouring mappings under one call"},
    {against::threads, "against threads that call at once, one page each"},
    {against::live, "against the mappings there are"},
    {against::work, "against ms of work that runs on other memory"},
};

std::string padded(const std::string &text, std::size_t width, bool right) {
  const std::string fill(width > text.size() ? width - text.size() : 0, ' ');
  return right ? fill + text : text + fill;
}

std::string grid(const table &t, const std::string &by) {
  std::vector<std::string> calls;
  std::set<double> xs;
  std::map<std::pair<std::string, double>, const row *> cells;
  std::size_t width = 4;
  for (const row &r : t.rows) {
    if (r.against != by || r.times.n == 0) continue;
    if (std::find(calls.begin(), calls.end(), r.call) == calls.end()) calls.push_back(r.call);
    xs.insert(r.x);
    cells[{r.call, r.x}] = &r;
    width = std::max(width, r.call.size());
  }
  if (calls.empty()) return "";
  const bool one = xs.size() == 1;  // leaves room for the 99th percentile
  std::string out = padded("", width, false);
  if (one) {
    out += "    median       p99         n";
  } else {
    for (const double x : xs) out += padded(short_number(x), 10, true);
  }
  out += '\n';
  for (const std::string &call : calls) {
    out += padded(call, width, false);
    for (const double x : xs) {
      const auto found = cells.find({call, x});
      const spread s = found != cells.end() ? found->second->times : spread{};
      out += padded(s.n != 0 ? microseconds(s.median_ns) : "-", 10, true);
      if (one) {
        out += padded(microseconds(s.p99_ns), 10, true) + padded(std::to_string(s.n), 10, true);
      }
    }
    out += '\n';
  }
  return out;
}

std::string short_code(const std::string &code) {
  const std::string prefix = "CUDA_ERROR_";
  return code.starts_with(prefix) ? code.substr(prefix.size()) : code;
}

std::string text_of(const fact &f) {
  const auto *const value = std::get_if<std::string>(&f.value);
  return value != nullptr ? *value : "";
}

std::string refusals(const table &t, const std::string &by) {
  std::string out;
  for (const row &r : t.rows) {
    if (r.against != by || r.error.empty()) continue;
    const std::string line = "  " + r.call + (r.x > 0 ? " at " + short_number(r.x) : "") +
                             " is refused: " + short_code(r.error) + "\n";
    if (out.find(line) == std::string::npos) out += line;  // several may need the same call
  }
  return out;
}

// The facts of captures; calls with the same result are one entry.
std::string captures(const table &t) {
  const std::string prefix = "capture.";
  std::vector<std::string> calls;
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> said;
  for (const fact &f : t.facts) {
    const std::size_t dot = f.name.rfind('.');
    if (!f.name.starts_with(prefix) || dot < prefix.size()) continue;
    const std::string call = f.name.substr(dot + 1);
    if (!said.contains(call)) calls.push_back(call);
    const bool lost = f.text.starts_with("the capture is lost");
    const std::string code = short_code(text_of(f));
    const std::string what = code == "CUDA_SUCCESS" ? (lost ? "done, CAPTURE LOST" : "")
                                                    : code + (lost ? ", CAPTURE LOST" : "");
    // "global.here in relaxed mode": the mode of the capture, and who calls.
    const std::string when = f.name.substr(prefix.size(), dot - prefix.size());
    const std::size_t mode = when.find('.');
    said[call].emplace_back(when.substr(0, mode) + " (" + when.substr(mode + 1) + ")", what);
  }
  std::vector<std::string> answers;
  std::map<std::string, std::string> who;
  for (const std::string &call : calls) {
    std::map<std::string, std::vector<std::string>> where;  // by what is said
    for (const auto &[when, what] : said[call]) {
      if (!what.empty()) where[what].push_back(when);
    }
    std::string answer = where.empty() ? "legal everywhere" : "";
    for (const auto &[what, when] : where) {
      answer += (answer.empty() ? "" : "; ") + what;
      if (when.size() == said[call].size()) {
        answer += " everywhere";
        continue;
      }
      for (const std::string &one : when) answer += (&one == when.data() ? " in " : ", ") + one;
    }
    if (!who.contains(answer)) answers.push_back(answer);
    who[answer] += "\n    " + call;
  }
  std::string out;
  for (const std::string &answer : answers) out += "  " + answer + who[answer] + "\n";
  return out.empty() ? "" : "\nwhile a stream captures: in which mode (who calls)\n" + out;
}

// "waits.KIND.CALL": a line a call, a column a kind of stream.
std::string waits(const table &t) {
  const std::string prefixes[] = {"waits.non-blocking.", "waits.blocking."};
  std::vector<std::string> calls;
  std::map<std::string, std::string> said[2];
  std::size_t width = 0;
  for (const fact &f : t.facts) {
    for (int i = 0; i < 2; ++i) {
      if (!f.name.starts_with(prefixes[i])) continue;
      const std::string call = f.name.substr(prefixes[i].size());
      if (std::find(calls.begin(), calls.end(), call) == calls.end()) calls.push_back(call);
      said[i][call] = short_code(text_of(f));
      width = std::max(width, call.size());
    }
  }
  if (calls.empty()) return "";
  std::string out = "\nwhile work runs on other memory, in a stream that is\n" +
                    padded("", width, false) + padded("non-blocking", 16, true) +
                    padded("blocking", 16, true) + "\n";
  for (const std::string &call : calls) {
    out += padded(call, width, false) + padded(said[0][call], 16, true) +
           padded(said[1][call], 16, true) + "\n";
  }
  return out;
}

bool has_a_grid(const fact &f) {
  return f.name.starts_with("capture.") || f.name.starts_with("waits.non-blocking.") ||
         f.name.starts_with("waits.blocking.");
}

}  // namespace

std::string readable(const table &t) {
  std::string out = t.device + ", " + t.driver + "\n";
  if (!t.hostcuda.empty()) {
    out += "hostcuda (" + t.hostcuda + ") is no GPU: no number here says anything about one\n";
  }
  if (t.quick) out += "quick: the numbers mean nothing\n";
  for (const auto &g : groups) {
    const std::string times = grid(t, g.against), refused = refusals(t, g.against);
    if (times.empty() && refused.empty()) continue;
    out +=
        std::string("\n") + g.title + (times.empty() ? "\n" : " (median, µs)\n") + times + refused;
  }
  out += waits(t) + captures(t);
  std::string rest;
  for (const fact &f : t.facts) {
    if (!has_a_grid(f)) rest += "  " + f.text + "\n";
  }
  return out + (rest.empty() ? "" : "\nfound\n" + rest);
}

}  // namespace stillmap::costs
