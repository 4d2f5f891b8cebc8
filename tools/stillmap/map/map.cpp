// stillmap map: performs a few operations on buffers and draws the address space they leave.
#include <fmt/format.h>

#include <cstdio>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/source.h"
#include "tools/stillmap/map/picture.h"
#include "tools/stillmap/map/scenario.h"

namespace stillmap::tool {
namespace {

// One of each thing that can be seen.
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
    "OPERATIONS, separated by ; or line ends, on buffers that you name:\n"
    "  grow NAME SIZE                      SIZE more at the end; makes the buffer if need be\n"
    "  shrink NAME [SIZE]                  SIZE less; pages past the end are given back\n"
    "  commit NAME OFFSET SIZE             memory for a range; makes the buffer if need be\n"
    "  decommit NAME OFFSET SIZE           a hole\n"
    "  alias NAME OFFSET SIZE NEW [TIMES]  the same pages at other addresses\n"
    "  fork NAME NEW                       a copy that shares pages until written\n"
    "  write NAME OFFSET SIZE              unshares a range\n"
    "  splice FROM OFFSET SIZE TO OFFSET   moves pages, not bytes\n"
    "  drop NAME                           gives a buffer back\n"
    "  hold, release                       in between, the device is busy and what is given back\n"
    "                                      retires (a GPU is busy for a moment only)\n"
    "  # comment to the end of the line\n"
    "Offsets and sizes are multiples of the page size, 2M, save for grow, shrink and write.\n"
    "Example: stillmap map --ops 'grow a 64M; grow b 32M; decommit a 16M 8M; fork b c;\n"
    "                             splice a 32M 16M b 128M; shrink a 8M' --svg map.svg\n";

struct map_options {
  driver_options driver;
  std::string ops;
  std::string file;
  std::string svg;
  std::uint64_t reserve = std::uint64_t{256} << 20;
  bool json = false;
};

outcome<std::string> script_of(const map_options &o) {
  if (!o.ops.empty()) return o.ops;
  if (o.file.empty()) return std::string(sample_script);
  auto source = byte_source::open(o.file);
  if (!source) return tl::unexpected(source.error());
  std::string text(std::size_t{1} << 20, '\0');
  const auto n = source->read(std::as_writable_bytes(std::span(text)));
  if (!n) return tl::unexpected(n.error());
  if (*n == text.size()) return fail(exit_usage, fmt::format("{} is over 1 MiB", o.file));
  text.resize(*n);
  return text;
}

outcome<exit_status> draw(const map_options &o) {
  const auto script = script_of(o);
  if (!script) return tl::unexpected(script.error());
  const auto operations = parse_operations(*script);
  if (!operations) return tl::unexpected(operations.error());
  auto drv = choose_driver(o.driver.driver);
  if (!drv) return tl::unexpected(drv.error());
  auto d = open_device(**drv, o.driver.device);
  if (!d) return tl::unexpected(d.error());
  auto played = scenario::create(*d, o.reserve);
  if (!played) return tl::unexpected(played.error());
  for (const operation &op : *operations) {
    if (auto performed = played->perform(op); !performed) return tl::unexpected(performed.error());
  }
  picture p = picture_of(*d, "Address space");
  // A fork or alias has the tag of what it came from; here every buffer has a name of its own.
  for (picture_row &row : p.rows) {
    const std::string name = played->name_at(device_address(row.begin));
    if (!name.empty()) row.name = name;
  }
  if (!o.svg.empty()) {
    if (auto written = write_svg(p, o.svg); !written) return tl::unexpected(written.error());
  }
  if (o.json) {
    json_writer json;
    json.begin_object().field("driver", describe(**drv, *d)).field("svg", o.svg);
    write_json(p, json);
    json.end();
    fmt::print("{}", json.text());
    return exit_ok;
  }
  fmt::print("driver   {}\n", describe(**drv, *d));
  fmt::print("after   ");
  std::string shown;
  for (const operation &op : *operations) shown += ' ' + op.text + ';';
  fmt::print("{}\n\n{}", shown, draw_in_terminal(p, terminal_of(stdout)));
  if (!o.svg.empty()) fmt::print("\npicture  {}\n", o.svg);
  return exit_ok;
}

}  // namespace

void add_map(CLI::App &app, command_body &body) {
  auto o = std::make_shared<map_options>();
  CLI::App *c = app.add_subcommand(
      "map",
      "Performs a few operations on buffers and draws the address space they leave: what is "
      "reserved,\n"
      "what has memory, what is shared, what is on its way out. Without operations: one of each.");
  c->footer(std::string(language) + "\n" + exit_status_help);
  add_driver_options(*c, o->driver);
  CLI::Option *ops = c->add_option("--ops", o->ops, "the operations, as below")->type_name("TEXT");
  c->add_option("--script", o->file, "a file with operations; - is standard input")
      ->type_name("FILE")
      ->excludes(ops);
  add_size(*c, "--reserve", o->reserve, "address space of each buffer (default 256M)");
  c->add_option("--svg", o->svg, "also write the picture as an SVG file")->type_name("PATH");
  c->add_flag("--json", o->json, "print one JSON document and nothing else");
  c->callback([o, &body] { body = [o] { return draw(*o); }; });
}

}  // namespace stillmap::tool
