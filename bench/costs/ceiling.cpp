// How many mappings a context holds.
#include <chrono>
#include <cstdio>

#include "bench/costs/many_mappings.h"
#include "bench/costs/parts.h"

namespace stillmap::costs {
namespace {

std::string seconds_since(std::chrono::steady_clock::time_point began) {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", took.count());
  return text;
}

}  // namespace

void measure_ceiling(const machine &m, time_left left, bool quick, table &out) {
  const std::size_t bound = quick ? 4096 : 600000;
  many_mappings all(m);
  auto began = std::chrono::steady_clock::now();
  all.grow(bound, left.share(0.5));  // unmapping takes as long
  const std::string took = seconds_since(began), count = std::to_string(all.count());
  const auto reached = static_cast<double>(all.count());
  if (all.refusal()) {
    const error &e = *all.refusal();
    if (all.count() == 0) {
      return out.add_fact("ceiling.mappings", name_of(e), "no mapping at all: " + e.message());
    }
    out.add_fact("ceiling.mappings", reached,
                 "one page was mapped at " + count + " addresses in " + took + "; the next is " +
                     "refused by " + e.operation + ": " + name_of(e));
    out.add_fact("ceiling.refused_by", std::string(e.operation),
                 "in the words of the library: " + e.message());
  } else {
    const bool done = all.count() == bound;
    out.add_fact("ceiling.none_within", reached,
                 "one page was mapped at " + count + " addresses in " + took +
                     ", and nothing was refused" +
                     (done ? "; more were not tried" : "; there was no time for more"));
  }
  began = std::chrono::steady_clock::now();
  const status undone = all.undo();
  out.add_fact("ceiling.undone", undone ? "yes" : name_of(undone.error()),
               undone ? "all were unmapped again in " + seconds_since(began)
                      : "they could not all be unmapped: " + undone.error().message());
  const auto again = make_piece(m, m.page());
  out.add_fact("ceiling.usable_after", again ? "yes" : name_of(again.error()),
               again ? "after that memory is mapped as before"
                     : "after that no memory is mapped: " + again.error().message());
}

}  // namespace stillmap::costs
