// The machine's tasks as lines of a table, in an order that can be chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/stillmap/machine/machine_view.h"

namespace stillmap::tool {

enum class sort_key : std::uint8_t { held, live, cached, suspended, growth, pid, user, name };
inline constexpr const char *sort_keys = "held|live|cached|suspended|growth|pid|user|name";
// `name`: one of sort_keys.
sort_key sort_key_of(const std::string &name);
const char *name_of(sort_key k);
sort_key next_key(sort_key k, int step);

// The largest first, or the first in the alphabet.
void sort_tasks(machine_view &view, sort_key by);

struct table_line {
  enum class kind : std::uint8_t { device, heading, task, others };
  kind of = kind::task;
  std::string text;
  const task_view *task = nullptr;  // of a line of a task; lives as long as the view
};

// At most `width` columns each, of which the last column takes what is left. `utf8`: for bars.
std::vector<table_line> table_of(const machine_view &view, std::size_t width, bool utf8);

// All that is known of one task, a line each.
std::vector<std::string> details_of(const task_view &t, const device_view *on);

}  // namespace stillmap::tool
