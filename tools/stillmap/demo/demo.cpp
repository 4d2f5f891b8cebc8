// stillmap demo: a stream of unknown length grows a device buffer in place, is checked, and is set
// beside the same job done by copying.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/demo/growth_run.h"
#include "tools/stillmap/demo/report.h"
#include "tools/stillmap/map/picture.h"

namespace stillmap::tool {
namespace {

struct demo_options {
  driver_options driver;
  std::string file;
  std::string svg = "out/address-space.svg";
  bool json = false;
  bool copying = false;
  bool no_comparison = false;
  std::uint64_t limit = 0;
  std::uint64_t chunk = std::uint64_t{16} << 20;
  std::uint64_t at_least = UINT64_MAX;  // not given
};

outcome<device_bytes> make_vector(const device &d, const char *tag, bool copying, const stream &s) {
  vector_options options;
  options.buffer.tag = tag;
  options.buffer.force_copying = copying;
  auto v = device_bytes::create(d, std::move(options), s);
  if (!v) return fail(v.error());
  return std::move(*v);
}

std::vector<picture_step> steps(const growth_run &run) {
  std::vector<picture_step> out;
  for (const growth_sample &g : run.history) out.push_back({g.size, g.mapped, g.generation});
  return out;
}

class demo {
 public:
  explicit demo(const demo_options &o) : o_(o) {}
  outcome<exit_status> run();

 private:
  outcome<byte_source> open_source() const;
  outcome<void> compare(byte_source &source, const device &d, device_bytes &grown);
  std::string why_not_compare(const device &d, std::uint64_t bytes, bool beside) const;
  void say(const std::string &text) const {
    if (!o_.json) fmt::print("{}\n", text);
    std::fflush(stdout);
  }

  const demo_options &o_;
  growth_limits limits_;
  demo_report report_;
};

outcome<byte_source> demo::open_source() const {
  if (!o_.file.empty()) {
    return byte_source::open(o_.file, o_.at_least == UINT64_MAX ? 0 : o_.at_least);
  }
  return byte_source::open_default(o_.at_least == UINT64_MAX ? std::uint64_t{1} << 30
                                                             : o_.at_least);
}

// Why the job by copying cannot be run, or an empty string. `beside`: while the grown buffer lives.
std::string demo::why_not_compare(const device &d, std::uint64_t bytes, bool beside) const {
  if (o_.no_comparison) return "not asked for";
  if (!d.capabilities().vmm) return "what was shown is growing by copying";
  const std::uint64_t needed = peak_of_copying(bytes, o_.chunk);
  const auto memory = d.memory();
  if (!memory) return memory.error().message();
  std::uint64_t free = memory->free.bytes();
  if (d.driver().is_hostcuda()) {
    // Its memory is the host's, of which some is kept for the machine.
    std::uint64_t host = available_host_memory().value_or(UINT64_MAX);
    host -= std::min<std::uint64_t>(host, std::uint64_t{512} << 20);
    free = std::min(free, host);
  }
  if (!beside) free += report_.in_place.mapped;  // which is given back first
  if (needed <= free) return "";
  return fmt::format("not run: it holds the old and the new buffer at once, {}, and {} are free",
                     human(needed), human(free));
}

outcome<void> demo::compare(byte_source &source, const device &d, device_bytes &grown) {
  const bool again = source.rereadable();
  report_.comparison = comparison::refused;
  report_.why_no_comparison = why_not_compare(d, report_.in_place.seen.bytes, !again);
  if (!report_.why_no_comparison.empty()) return {};
  if (again) {
    // Its pages go back to the device, so that both jobs begin with nothing.
    if (const status s = grown.clear(); !s) return fail(s.error());
    if (const status s = grown.shrink_to_fit(); !s) return fail(s.error());
    if (const status s = grown.synchronize(); !s) return fail(s.error());
    d.space().collect(true);
    if (const auto trimmed = d.pool()->trim(); !trimmed) return fail(trimmed.error());
  }
  auto s = stream::create(d);
  if (!s) return fail(s.error());
  auto v = make_vector(d, "copied", true, *s);
  if (!v) return tl::unexpected(v.error());
  growth_limits limits = limits_;
  limits.most = report_.in_place.seen.bytes;
  constexpr const char *what = "growing by copying";
  if (again) source.rewind();
  auto run = again ? grow_from(source, *v, limits, what) : grow_from(grown, *v, limits, what);
  if (!run) {
    report_.why_no_comparison = "it failed: " + run.error().line;
    return {};
  }
  report_.by_copying = std::move(*run);
  report_.comparison = comparison::done;
  return {};
}

outcome<exit_status> demo::run() {
  auto source = open_source();
  if (!source) return tl::unexpected(source.error());
  auto chosen = choose_driver(o_.driver.driver);
  if (!chosen) return tl::unexpected(chosen.error());
  driver &drv = **chosen;
  auto d = open_device(drv, o_.driver.device);
  if (!d) return tl::unexpected(d.error());
  if (!keeps_content(drv)) {
    return fail(exit_usage,
                "this hostcuda is unbacked: it keeps books but no bytes, so that no content can be "
                "checked; leave 'unbacked' out of HOSTCUDA");
  }

  limits_.chunk = static_cast<std::size_t>(o_.chunk);
  if (o_.limit != 0) limits_.most = o_.limit;
  limits_.silent = o_.json;
  report_.driver = describe(drv, *d);
  report_.driver_path = drv.path();
  report_.driver_version = drv.version();
  report_.source = source->name();
  report_.source_bytes = source->file_bytes();
  report_.at_least = source->at_least();

  say(fmt::format("driver   {}, CUDA {}", report_.driver, version_text(drv.version())));
  std::string from = source->name();
  if (source->file_bytes() != 0) from += fmt::format(", {}", human(source->file_bytes()));
  if (source->at_least() > source->file_bytes() && source->file_bytes() != 0) {
    from += fmt::format(", read again and again until {} have come", human(source->at_least()));
  }
  say(fmt::format("source   {}", from));

  auto s = stream::create(*d);
  if (!s) return fail(s.error());
  auto v = make_vector(*d, "stream", o_.copying, *s);
  if (!v) return tl::unexpected(v.error());
  if (v->buffer().in_place()) {
    say(fmt::format("reserved {} of addresses at {}, which cost no memory",
                    human(v->buffer().reserved()), hexadecimal(v->address().value())));
  } else {
    say(o_.copying ? "growing by copying, as asked: the address moves and bytes are copied"
                   : "this device has no virtual memory management, so growing must copy here");
  }

  auto run = grow_from(*source, *v, limits_, v->buffer().in_place() ? "growing" : "copying");
  if (!run) return tl::unexpected(run.error());
  if (auto checked = check_content(*source, *v, limits_, *run); !checked) {
    return tl::unexpected(checked.error());
  }
  report_.in_place = std::move(*run);
  report_.was_in_place = v->buffer().in_place();
  report_.verdict = judge(report_.in_place.seen);
  report_.map = picture_of(*d, "What a growing buffer looks like");
  report_.map.history_name = "history of 'stream'";
  report_.map.history = steps(report_.in_place);
  say(sentences(report_));

  if (!o_.copying) {
    if (auto compared = compare(*source, *d, *v); !compared) {
      return tl::unexpected(compared.error());
    }
    report_.map.copying = steps(report_.by_copying);
    say(table(report_));
  }
  say(draw_in_terminal(report_.map, terminal_of(stdout)));
  if (!o_.svg.empty()) {
    if (auto written = write_svg(report_.map, o_.svg); !written) {
      return tl::unexpected(written.error());
    }
    report_.svg = o_.svg;
    say(fmt::format("picture  {}\n", o_.svg));
  }
  if (o_.json) fmt::print("{}", as_json(report_));
  say(report_.verdict.line);
  return report_.verdict.ok ? exit_ok : exit_failed;
}

}  // namespace

void add_demo(CLI::App &app, command_body &body) {
  auto o = std::make_shared<demo_options>();
  CLI::App *c = app.add_subcommand("demo",
                                   "Appends a stream of unknown length to a device buffer that "
                                   "grows as it comes; shows that the\n"
                                   "address never changed, that no byte was copied and that the "
                                   "content is right; sets beside it\n"
                                   "what growing by copying costs; and draws the address space.");
  c->footer(exit_status_help);
  c->add_option("FILE", o->file,
                "what to read; - is standard input.\nDefault: a large file that every machine has")
      ->type_name("");
  add_driver_options(*c, o->driver);
  add_size(*c, "--limit", o->limit, "stop reading after SIZE bytes");
  add_size(*c, "--at-least", o->at_least,
           "read the file again and again until SIZE bytes have come\n(default 1G without FILE)");
  add_size(*c, "--chunk", o->chunk, "how much is read, and grown by, at a time (default 16M)");
  c->add_option("--svg", o->svg, "where the picture goes; '' for none\n(default " + o->svg + ")")
      ->type_name("PATH");
  c->add_flag("--no-comparison", o->no_comparison, "do not run the same job by copying");
  c->add_flag("--copying", o->copying,
              "grow by copying, as where a device has no virtual memory\nmanagement; the check "
              "then says what that costs and fails");
  c->add_flag("--json", o->json, "print one JSON document and nothing else");
  c->callback([o, &body] {
    if (o->chunk == 0 || o->chunk > (std::uint64_t{4} << 30)) {
      throw CLI::ValidationError("--chunk", "must be from 1 byte to 4 GiB");
    }
    body = [o] { return demo(*o).run(); };
  });
}

}  // namespace stillmap::tool
