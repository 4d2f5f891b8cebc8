// Parses recorded requests (CSV, JSON lines).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "bench/replay/internal/failure.h"
#include "bench/replay/serving/serving.h"

namespace stillmap::replay {
namespace {

template <class Number>
std::optional<Number> number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  Number n{};
  const auto read = std::from_chars(text.data(), text.data() + text.size(), n);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return n;
}

// Seconds since some moment: "2023-11-16 18:15:46.6805900", or a plain number.
std::optional<double> moment(std::string_view text) {
  if (const auto plain = number<double>(text)) return std::isfinite(*plain) ? plain : std::nullopt;
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' ||
      (text[10] != ' ' && text[10] != 'T') || text[13] != ':' || text[16] != ':') {
    return std::nullopt;
  }
  const auto year = number<int>(text.substr(0, 4));
  const auto month = number<unsigned>(text.substr(5, 2)), d = number<unsigned>(text.substr(8, 2));
  const auto hour = number<int>(text.substr(11, 2)), minute = number<int>(text.substr(14, 2));
  const auto second = number<double>(text.substr(17));
  if (!year || !month || !d || !hour || !minute || !second) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(*month),
                                         std::chrono::day(*d)};
  if (!date.ok()) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return (static_cast<double>(days) * 24 + *hour) * 3600 + *minute * 60 + *second;
}

std::optional<serving_request> of_csv(std::string_view line) {
  const std::size_t first = line.find(',');
  const std::size_t second = first == line.npos ? first : line.find(',', first + 1);
  if (second == line.npos) return std::nullopt;
  const std::size_t third = std::min(line.find(',', second + 1), line.size());
  const auto when = moment(line.substr(0, first));
  const auto prompt = number<std::uint32_t>(line.substr(first + 1, second - first - 1));
  const auto answer = number<std::uint32_t>(line.substr(second + 1, third - second - 1));
  if (!when || !prompt || !answer) return std::nullopt;
  return serving_request{*when, *prompt, *answer};
}

template <class Number>
std::optional<Number> member(std::string_view line, std::string_view key) {
  std::size_t at = line.find(fmt::format("\"{}\"", key));
  if (at == line.npos) return std::nullopt;
  at = line.find(':', at);
  if (at == line.npos) return std::nullopt;
  return number<Number>(line.substr(at + 1, line.find_first_of(",}", at) - at - 1));
}

// The numbers of a list; none if there is no such member.
std::optional<std::vector<std::uint64_t>> numbers(std::string_view line, std::string_view key) {
  std::vector<std::uint64_t> all;
  std::size_t at = line.find(fmt::format("\"{}\"", key));
  if (at == line.npos) return all;
  at = line.find('[', at);
  const std::size_t end = line.find(']', at);
  if (at == line.npos || end == line.npos) return std::nullopt;
  for (++at; at < end;) {
    const std::size_t comma = std::min(line.find(',', at), end);
    const auto n = number<std::uint64_t>(line.substr(at, comma - at));
    if (!n) return std::nullopt;
    all.push_back(*n);
    at = comma + 1;
  }
  return all;
}

std::optional<serving_request> of_json(std::string_view line) {
  const auto when = member<double>(line, "timestamp");
  const auto prompt = member<std::uint32_t>(line, "input_length");
  const auto answer = member<std::uint32_t>(line, "output_length");
  auto blocks = numbers(line, "hash_ids");
  if (!when || !prompt || !answer || !blocks || !std::isfinite(*when)) return std::nullopt;
  return serving_request{*when / 1000, *prompt, *answer, std::move(*blocks)};
}

}  // namespace

result<std::vector<serving_request>> parse_requests(std::string_view text, std::string_view name,
                                                    bool json_lines) {
  constexpr std::uint32_t most_tokens = 1u << 24;
  std::vector<serving_request> out;
  std::size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (!json_lines && line_number == 1)) continue;  // the names of the columns
    auto r = json_lines ? of_json(line) : of_csv(line);
    if (!r || r->prompt > most_tokens || r->answer > most_tokens) {
      return fail(errc::invalid_argument,
                  fmt::format("{}:{}: no request: '{}'", name, line_number, line.substr(0, 80)));
    }
    out.push_back(std::move(*r));
  }
  if (out.empty()) return fail(errc::invalid_argument, fmt::format("{}: no requests", name));
  std::stable_sort(out.begin(), out.end(),
                   [](const auto &a, const auto &b) { return a.arrives < b.arrives; });
  const double first = out.front().arrives;
  for (serving_request &r : out) r.arrives -= first;
  return out;
}

result<std::vector<serving_request>> read_requests(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(errc::invalid_argument, fmt::format("{}: cannot be read", path));
  std::ostringstream text;
  text << in.rdbuf();
  return parse_requests(text.str(), path, path.ends_with(".jsonl"));
}

}  // namespace stillmap::replay
