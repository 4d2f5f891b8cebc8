#include "tools/stillmap/trace/card.h"

#include <fmt/format.h>

#include "stillmap/vmm/base/units.h"

namespace stillmap::tool {
namespace {

using namespace literals;

// A driver reports up to a twentieth less than what a card is sold with.
constexpr double usable_share = 0.95;
constexpr card cards[] = {
    {6, "RTX 2060"},      {8, "RTX 4060"},      {12, "RTX 4070"}, {16, "T4, RTX 4080"},
    {24, "RTX 4090, L4"}, {32, "RTX 5090"},     {40, "A100"},     {48, "L40S"},
    {80, "A100, H100"},   {96, "RTX PRO 6000"}, {141, "H200"},    {180, "B200"},
};

}  // namespace

card smallest_card(std::uint64_t bytes) {
  for (const card &c : cards) {
    const double usable = usable_share * static_cast<double>(c.gib * 1_GiB);
    if (static_cast<double>(bytes + context_bytes) <= usable) return c;
  }
  return {};
}

std::string text_of(const card &c) {
  return c.gib == 0 ? "no card" : fmt::format("a card of {} GiB ({})", c.gib, c.such_as);
}

void write(json_writer &json, std::string_view key, const card &c) {
  if (c.gib == 0) {
    json.nothing(key);
  } else {
    json.begin_object(key).field("gib", c.gib).field("such_as", c.such_as).end();
  }
}

}  // namespace stillmap::tool
