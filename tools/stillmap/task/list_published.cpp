// stillmap task published, and withdraw: what a holder keeps.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "stillmap/checkpoint/publication/publication.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/task/task_commands.h"

namespace stillmap::tool {
namespace {

using publication::held_publication;

void print_json(const std::vector<held_publication> &all) {
  json_writer json;
  json.begin_object().begin_array("published");
  for (const held_publication &p : all) {
    json.begin_object().field("name", p.name).field("generation", p.generation);
    json.field("newest", p.newest).field("bytes", p.bytes).field("pages", p.pages);
    json.field("publisher", p.publisher).begin_array("readers");
    for (const pid_t reader : p.readers) json.element(reader);
    json.end().end();
  }
  fmt::print("{}", json.end().end().text());
}

// "4711, 4712 (2)": a process that has attached it twice is named once.
std::string readers_of(const held_publication &p) {
  std::vector<pid_t> readers = p.readers;
  std::sort(readers.begin(), readers.end());
  std::string out;
  for (auto r = readers.begin(); r != readers.end();) {
    const auto last = std::upper_bound(r, readers.end(), *r);
    out += fmt::format("{}{}", out.empty() ? "" : ", ", *r);
    if (last - r > 1) out += fmt::format(" ({})", last - r);
    r = last;
  }
  return out.empty() ? "-" : out;
}

}  // namespace

outcome<exit_status> run_list_published(const list_published_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto all, about(publication::list(o.socket), o.socket));
  if (o.json) {
    print_json(all);
    return exit_ok;
  }
  if (all.empty()) {
    fmt::print("nothing is published at {}\n", printable(o.socket));
    return exit_ok;
  }
  std::size_t width = 4;
  for (const held_publication &p : all) width = std::max(width, printable(p.name).size());
  fmt::print("{:<{}}  generation        size   pages  publisher  readers\n", "name", width);
  for (const held_publication &p : all) {
    fmt::print("{:<{}}  {:>10}  {:>10}  {:>6}  {:>9}  {}{}\n", printable(p.name), width,
               p.generation, format_bytes(p.bytes), p.pages, p.publisher, readers_of(p),
               p.newest ? "" : "  (superseded, or withdrawn)");
  }
  return exit_ok;
}

outcome<exit_status> run_withdraw(const withdraw_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const std::uint64_t generation,
                            about(publication::withdraw(o.socket, o.name), o.socket));
  if (o.json) {
    json_writer json;
    json.begin_object().field("name", o.name).field("generation", generation);
    fmt::print("{}", json.end().text());
  } else {
    fmt::print("stillmap: ok: withdrew generation {} of {}\n", generation, printable(o.name));
  }
  return exit_ok;
}

}  // namespace stillmap::tool
