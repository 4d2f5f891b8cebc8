#include "tools/stillmap/run/program_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>

#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

namespace fs = std::filesystem;

// The value of a field in a line of the preload's JSON: it has each record on a line of its own.
std::string_view field(std::string_view line, const std::string &key) {
  const std::string opening = "\"" + key + "\": ";
  const std::size_t at = line.find(opening);
  if (at == std::string_view::npos) return {};
  std::string_view rest = line.substr(at + opening.size());
  if (rest.starts_with('"')) {
    rest.remove_prefix(1);
    return rest.substr(0, rest.find('"'));
  }
  return rest.substr(0, rest.find_first_of(",}"));
}

std::uint64_t number(std::string_view line, const std::string &key) {
  const std::string_view text = field(line, key);
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void add_device(std::string_view line, program_report &r) {
  r.allocations += number(line, "allocations");
  r.live_peak = std::max(r.live_peak, number(line, "live_peak_bytes"));
  r.committed_peak = std::max(r.committed_peak, number(line, "committed_peak_bytes"));
  r.moved_bytes += number(line, "pages_moved") * number(line, "page_bytes");
  r.refused += number(line, "out_of_memory") + number(line, "driver_out_of_memory");
  r.driver_allocations += number(line, "driver_allocations");
  r.driver_live_peak = std::max(r.driver_live_peak, number(line, "driver_live_peak_bytes"));
}

void add_passed(std::string_view line, program_report &r) {
  const std::size_t begin = line.find('"') + 1;
  const std::string kind(line.substr(begin, line.find('"', begin) - begin));
  const std::uint64_t calls = number(line, "calls");
  if (calls == 0) return;
  const auto known = std::find_if(r.passed_on.begin(), r.passed_on.end(),
                                  [&](const auto &p) { return p.kind == kind; });
  program_report::passed &p = known != r.passed_on.end() ? *known : r.passed_on.emplace_back();
  p.kind = kind;
  p.calls += calls;
  p.bytes += number(line, "bytes");
}

void add_function(std::string_view line, program_report &r) {
  const std::string name(field(line, "function"));
  const auto same = [&](const program_report::function &f) { return f.name == name; };
  if (std::any_of(r.functions.begin(), r.functions.end(), same)) return;
  r.functions.push_back(
      {name, std::string(field(line, "served_by")), std::string(field(line, "because"))});
}

void add(const std::string &document, program_report &r) {
  std::istringstream lines(document);
  for (std::string line; std::getline(lines, line);) {
    if (!field(line, "live_peak_bytes").empty()) add_device(line, r);
    if (!field(line, "calls").empty()) add_passed(line, r);
    if (!field(line, "served_by").empty()) add_function(line, r);
  }
  r.documents.push_back(document);
}

}  // namespace

program_report read_reports(const std::string &folder) {
  program_report r;
  std::error_code trouble;
  std::vector<fs::path> files;
  for (const auto &entry : fs::directory_iterator(folder, trouble)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path &path : files) {
    std::ifstream file(path);
    add({std::istreambuf_iterator<char>(file), {}}, r);
  }
  return r;
}

std::string describe(const program_report &r) {
  std::string out = fmt::format("  {} allocations served, at most {} live in {} held\n",
                                format_count(r.allocations), format_bytes(r.live_peak),
                                format_bytes(r.committed_peak));
  if (r.moved_bytes != 0) {
    out += fmt::format("  {} of free memory were mapped to where they were needed\n",
                       format_bytes(r.moved_bytes));
  }
  if (r.driver_allocations != 0) {
    out +=
        fmt::format("  {} by the driver, at most {} live\n",
                    counted(r.driver_allocations, "allocation"), format_bytes(r.driver_live_peak));
  }
  if (r.refused != 0) out += fmt::format("  {} found no memory\n", counted(r.refused, "request"));
  for (const program_report::passed &p : r.passed_on) {
    std::string kind = p.kind == "not_served" ? "memory that Stillmap can serve" : p.kind;
    std::replace(kind.begin(), kind.end(), '_', ' ');
    out += fmt::format("  the driver served {} of {}{}\n", counted(p.calls, "request"), kind,
                       p.bytes != 0 ? ", " + format_bytes(p.bytes) : "");
  }
  return out;
}

std::string explain(const program_report &r) {
  std::string out;
  for (const program_report::function &f : r.functions) {
    out += fmt::format("  {:<28} {}: {}\n", f.name, f.served_by, f.because);
  }
  return out;
}

}  // namespace stillmap::tool
