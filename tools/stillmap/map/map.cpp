// stillmap map: performs operations on buffers and draws the resulting address space.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/common/source.h"
#include "tools/stillmap/map/picture.h"
#include "tools/stillmap/map/scenario.h"

namespace stillmap::tool {
namespace {

// Shows one example of each state.
constexpr const char *sample_script =
    "grow weights 96M\n"
    "grow cache 128M\n"
    "decommit cache 32M 24M\n"
    "commit cache 192M 32M\n"
    "alias weights 64M 16M ring 2\n"
    "grow state 64M\n"
    "fork state branch\n"
    "write branch 16M 16M\n"
    "grow pool 96M\n"
    "hold\n"
    "shrink pool 32M\n"
    "decommit cache 96M 16M\n";

constexpr const char *language =
    "OPERATIONS, separated by ; or line breaks, on named buffers:\n"
    "  grow NAME SIZE                      appends SIZE; creates the buffer if it does not exist\n"
    "  shrink NAME [SIZE]                  removes SIZE from the end, and releases its pages\n"
    "  commit NAME OFFSET SIZE             maps pages to a range; creates the buffer\n"
    "  decommit NAME OFFSET SIZE           unmaps a range\n"
    "  alias NAME OFFSET SIZE NEW [TIMES]  maps the same pages at other addresses\n"
    "  fork NAME NEW                       a copy that shares pages until they are written\n"
    "  write NAME OFFSET SIZE              unshares the pages of a range\n"
    "  splice FROM OFFSET SIZE TO OFFSET   moves pages, not bytes\n"
    "  drop NAME                           destroys a buffer\n"
    "  hold, release                       keeps the device busy in between, so that released "
    "pages\n"
    "                                      retire (a GPU is busy for a short time only)\n"
    "  # comment up to the end of the line\n"
    "Offsets and sizes are multiples of the page size, 2M, except for grow, shrink and write.\n"
    "Example: stillmap map --ops 'grow a 64M; grow b 32M; decommit a 16M 8M; fork b c;\n"
    "                             splice a 32M 16M b 128M; shrink a 8M' --svg map.svg\n";

struct map_options {
  driver_options driver;
  std::string ops;
  std::string file;
  std::string svg;
  std::uint64_t reserve_bytes = std::uint64_t{256} << 20;
  bool json = false;
};

outcome<std::string> script_of(const map_options &options) {
  if (!options.ops.empty() && !options.file.empty())
    return fail(exit_usage, "--script and --ops exclude each other");
  if (!options.ops.empty()) return options.ops;
  if (options.file.empty()) return std::string(sample_script);
  STILLMAP_ASSIGN_OR_RETURN(auto source, byte_source::open(options.file));
  std::string text(std::size_t{1} << 20, '\0');
  STILLMAP_ASSIGN_OR_RETURN(const std::size_t n,
                            source.read(std::as_writable_bytes(std::span(text))));
  if (n == text.size()) return fail(exit_usage, fmt::format("{} is over 1 MiB", options.file));
  text.resize(n);
  return text;
}

outcome<exit_status> draw(const map_options &options) {
  STILLMAP_ASSIGN_OR_RETURN(const std::string script, script_of(options));
  STILLMAP_ASSIGN_OR_RETURN(const auto operations, parse_operations(script));
  STILLMAP_ASSIGN_OR_RETURN(driver *const drv, choose_driver(options.driver.driver));
  STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(*drv, options.driver.device));
  STILLMAP_ASSIGN_OR_RETURN(scenario buffers, scenario::create(d, options.reserve_bytes));
  for (const operation &op : operations) STILLMAP_RETURN_IF_ERROR(buffers.perform(op));
  picture p = picture_of(d, "Address space");
  // A fork or alias inherits its tag; the picture shows the name in the script.
  for (picture_row &row : p.rows) {
    const std::string name = buffers.name_at(device_address(row.begin));
    if (!name.empty()) row.name = name;
  }
  if (!options.svg.empty()) STILLMAP_RETURN_IF_ERROR(write_svg(p, options.svg));
  if (options.json) {
    json_writer json;
    json.begin_object().field("driver", describe(*drv, d)).field("svg", options.svg);
    write_json(p, json);
    json.end();
    fmt::print("{}", json.text());
    return exit_ok;
  }
  fmt::print("driver   {}\n", describe(*drv, d));
  fmt::print("after   ");
  std::string shown;
  for (const operation &op : operations) shown += ' ' + op.text + ';';
  fmt::print("{}\n\n{}", shown, draw_in_terminal(p, terminal_of(stdout)));
  if (!options.svg.empty()) fmt::print("\npicture  {}\n", options.svg);
  return exit_ok;
}

}  // namespace

void add_map_command(command &root) {
  const auto o = std::make_shared<map_options>();
  command &c = root.add("map",
                        "Performs a few operations on buffers and draws the resulting address "
                        "space: what is reserved, mapped, shared or retiring. Without operations "
                        "it shows one example of each.");
  add_driver_options(c, o->driver);
  c.text("--ops", o->ops, "OPS", "the operations, in the language below");
  c.text("--script", o->file, "FILE", "a file with operations; - is standard input");
  c.size("--reserve", o->reserve_bytes, "address space of each buffer (default: 256M)");
  c.text("--svg", o->svg, "PATH", "also write the picture as an SVG file");
  c.json(o->json);
  c.notes = language;
  c.run = [o] { return draw(*o); };
}

}  // namespace stillmap::tool
