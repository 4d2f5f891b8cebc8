// Draws the address space with characters. Each reservation is a bar; if little of it is used, a
// second bar enlarges the used part.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tools/stillmap/common/size.h"
#include "tools/stillmap/map/picture.h"

namespace stillmap::tool {
namespace {

struct look {
  const char *utf8;
  const char *ascii;
  const char *colour;  // SGR
};
// Distinct without colour, too.
constexpr std::array<look, backing_kinds> looks = {{
    {"░", ".", "2"},
    {"█", "#", "32"},
    {"▓", "=", "36"},
    {"▒", "~", "33"},
}};
constexpr look partly = {"▌", "+", "32"};  // a cell of which only a part is mapped

class painter {
 public:
  painter(const picture &p, const terminal &t) : p_(p), t_(t) {}
  std::string draw();

 private:
  std::size_t width() const { return static_cast<std::size_t>(t_.width); }
  std::string paint(const look &l, const std::string &text) const {
    return t_.colour ? fmt::format("\x1b[{}m{}\x1b[0m", l.colour, text) : text;
  }
  std::string bold(const std::string &text) const {
    return t_.colour ? fmt::format("\x1b[1m{}\x1b[0m", text) : text;
  }
  void line(std::string text) {
    // ASCII only, so that a byte is a column.
    if (text.size() > width()) text.resize(width());
    out_ += text + '\n';
  }
  std::string bar(const picture_row &row, std::uint64_t span, std::size_t cells) const;
  void scale(std::uint64_t begin, std::uint64_t span);
  void draw_row(const picture_row &row);
  void legend();
  void pool();
  void history();

  const picture &p_;
  const terminal &t_;
  std::string out_;
};

std::string painter::bar(const picture_row &row, std::uint64_t span, std::size_t cells) const {
  std::string out, run;
  const look *before = nullptr;
  for (const cell &c : cells_of(row, span, cells)) {
    const look &l =
        c.kind == backing::mapped && !c.full ? partly : looks[static_cast<std::size_t>(c.kind)];
    if (before != nullptr && before != &l) {
      out += paint(*before, run);
      run.clear();
    }
    run += t_.utf8 ? l.utf8 : l.ascii;
    before = &l;
  }
  return before == nullptr ? out : out + paint(*before, run);
}

// The addresses of a bar's ends, and its length between them.
void painter::scale(std::uint64_t begin, std::uint64_t span) {
  const std::string left = hexadecimal(begin), right = hexadecimal(begin + span);
  const std::string middle = format_bytes(span);
  const std::size_t used = left.size() + right.size() + middle.size();
  if (used + 4 > width()) return line("  " + left);
  const std::size_t gap = width() - 2 - used;
  line("  " + left + std::string(gap / 2, ' ') + middle + std::string(gap - gap / 2, ' ') + right);
}

void painter::draw_row(const picture_row &row) {
  const std::string name = row.name.empty() ? "(no name)" : printable(row.name);
  std::string facts =
      row.reservation ? fmt::format("{} reserved", format_bytes(row.bytes))
                      : fmt::format("{} allocated, cannot grow in place", format_bytes(row.bytes));
  for (const backing kind : {backing::mapped, backing::shared, backing::retiring}) {
    if (const std::uint64_t n = row.bytes_of(kind); n != 0 && row.reservation) {
      facts += fmt::format(", {} {}", format_bytes(n), word_for(kind));
    }
  }
  if (row.reservation) facts += fmt::format(", generation {}", row.generation);
  const std::size_t room = width() > name.size() + 3 ? width() - name.size() - 2 : 0;
  if (facts.size() > room) facts.resize(room);
  out_ += '\n' + bold(name) + "  " + facts + '\n';

  const std::size_t cells = width() - 2;
  out_ += "  " + bar(row, row.bytes, cells) + '\n';
  scale(row.begin, row.bytes);
  if (const std::uint64_t zoom = zoom_of(row, p_.page_bytes); zoom != 0) {
    line(fmt::format("  its first {}, enlarged:", format_bytes(zoom)));
    out_ += "  " + bar(row, zoom, cells) + '\n';
    scale(row.begin, zoom);
  }
}

void painter::legend() {
  constexpr std::array<const char *, backing_kinds> meaning = {
      "reserved, no memory", "mapped", "shared by two addresses", "retiring"};
  out_ += '\n';
  std::size_t column = 0;
  const auto entry = [&](const look &l, const std::string &text) {
    const std::size_t columns = text.size() + 4;
    if (column != 0 && column + columns > width()) {
      out_ += '\n';
      column = 0;
    }
    out_ += "  " + paint(l, t_.utf8 ? l.utf8 : l.ascii) + ' ' + text;
    column += columns;
  };
  for (std::size_t k = 0; k < backing_kinds; ++k) {
    entry(looks[k], meaning[k]);
    if (static_cast<backing>(k) == backing::mapped) entry(partly, "partly mapped");
  }
  out_ += '\n';
}

void painter::pool() {
  line(fmt::format("  memory: {} in use, {} free after pending work, {} free in the pool",
                   format_bytes(p_.pages_in_use), format_bytes(p_.pages_retiring + p_.pool_waiting),
                   format_bytes(p_.pool_ready)));
}

// Mapped bytes after each growth as columns of eight heights.
void painter::history() {
  if (p_.history.size() < 2) return;
  constexpr std::array<const char *, 8> blocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<const char *, 8> letters = {".", ".", ":", ":", "+", "+", "#", "#"};
  std::uint64_t most = 1;
  for (const picture_step &s : p_.history) most = std::max(most, s.mapped);
  const std::size_t columns = std::min(width() - 2, p_.history.size());
  std::string bars;
  for (std::size_t i = 0; i < columns; ++i) {
    const picture_step &s = p_.history[(i + 1) * p_.history.size() / columns - 1];
    const auto height = static_cast<std::size_t>(static_cast<long double>(s.mapped) * 7 /
                                                 static_cast<long double>(most));
    bars += t_.utf8 ? blocks[height] : letters[height];
  }
  out_ += '\n' + bold(p_.history_name) + "  its memory, growth by growth\n  " +
          paint(looks[static_cast<std::size_t>(backing::mapped)], bars) + '\n';
  const picture_step &first = p_.history.front(), &last = p_.history.back();
  line(fmt::format("  generation {}: {} mapped  ->  generation {}: {} mapped", first.generation,
                   format_bytes(first.mapped), last.generation, format_bytes(last.mapped)));
}

std::string painter::draw() {
  out_ += bold(p_.title) + '\n';
  if (p_.rows.empty()) line("  nothing is reserved");
  for (const picture_row &row : p_.rows) draw_row(row);
  legend();
  pool();
  history();
  return out_;
}

}  // namespace

std::string draw_in_terminal(const picture &p, const terminal &t) {
  return painter(p, t).draw();
}

}  // namespace stillmap::tool
