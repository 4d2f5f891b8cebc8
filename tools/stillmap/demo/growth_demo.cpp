// stillmap demo growth: a stream of unknown length grows a device buffer in place; the result is
// checked and compared with the same job done by copying.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/demo/demo_commands.h"
#include "tools/stillmap/demo/growth_run.h"
#include "tools/stillmap/demo/report.h"
#include "tools/stillmap/map/picture.h"

namespace stillmap::tool {
namespace {

outcome<device_bytes> make_vector(const device &d, const char *tag, bool copying, const stream &s) {
  vector_options options;
  options.buffer.tag = tag;
  options.buffer.force_copying = copying;
  STILLMAP_ASSIGN_OR_RETURN(auto v, device_bytes::create(d, std::move(options), s));
  return v;
}

class growth_demo {
 public:
  explicit growth_demo(const growth_demo_options &o) : o_(o) {}

  outcome<exit_status> run() {
    STILLMAP_ASSIGN_OR_RETURN(auto source, open_source());
    STILLMAP_ASSIGN_OR_RETURN(const auto d, open_device(o_.driver));
    const driver &drv = d.driver();
    if (!keeps_content(drv)) {
      return fail(exit_usage,
                  "this hostcuda is unbacked: it stores no bytes, so the content cannot be "
                  "checked; remove 'unbacked' from HOSTCUDA");
    }

    limits_ = {static_cast<std::size_t>(o_.chunk), o_.limit != 0 ? o_.limit : UINT64_MAX, o_.json};
    report_.driver = describe(drv, d);
    report_.driver_path = drv.path();
    report_.driver_version = drv.version();
    report_.source = source.name();
    report_.source_bytes = source.file_bytes();
    report_.at_least = source.at_least();

    say("driver   {}, CUDA {}", report_.driver, version_text(drv.version()));
    std::string from = source.name();
    if (source.file_bytes() != 0) from += fmt::format(", {}", format_bytes(source.file_bytes()));
    if (source.at_least() > source.file_bytes() && source.file_bytes() != 0) {
      from += fmt::format(", read repeatedly, {} in total", format_bytes(source.at_least()));
    }
    say("source   {}", from);

    STILLMAP_ASSIGN_OR_RETURN(auto s, stream::create(d));
    STILLMAP_ASSIGN_OR_RETURN(auto v, make_vector(d, "stream", o_.copying, s));
    if (v.buffer().in_place()) {
      say("reserved {} of address space at {}, without memory", format_bytes(v.buffer().reserved()),
          hexadecimal(v.address().value()));
    } else {
      say("{}", o_.copying
                    ? "growing by copying, as requested: the address changes and bytes are copied"
                    : "this device has no virtual memory management: growing copies");
    }

    STILLMAP_ASSIGN_OR_RETURN(
        auto run, grow_from(source, v, limits_, v.buffer().in_place() ? "growing" : "copying"));
    STILLMAP_RETURN_IF_ERROR(check_content(source, v, limits_, run));
    report_.in_place = std::move(run);
    report_.was_in_place = v.buffer().in_place();
    report_.verdict = judge(report_.in_place.seen);
    report_.map = picture_of(d, "A growing buffer");
    report_.map.history_name = "history of 'stream'";
    report_.map.history = report_.in_place.history;
    say("{}", sentences(report_));

    if (!o_.copying) {
      STILLMAP_RETURN_IF_ERROR(compare(source, d, v));
      report_.map.copying = report_.by_copying.history;
      say("{}", table(report_));
    }
    say("{}", draw_in_terminal(report_.map, terminal_of(stdout)));
    if (!o_.svg.empty()) {
      STILLMAP_RETURN_IF_ERROR(write_svg(report_.map, o_.svg));
      report_.svg = o_.svg;
      say("picture  {}\n", o_.svg);
    }
    if (o_.json) fmt::print("{}", as_json(report_));
    say("{}", report_.verdict.line);
    return report_.verdict.ok ? exit_ok : exit_differs;
  }

 private:
  outcome<byte_source> open_source() const {
    const std::uint64_t at_least = o_.at_least != UINT64_MAX ? o_.at_least
                                   : o_.file.empty()         ? std::uint64_t{1} << 30
                                                             : 0;
    return o_.file.empty() ? byte_source::open_default(at_least)
                           : byte_source::open(o_.file, at_least);
  }

  // Why the job by copying cannot be run; empty: it can. `beside`: while the grown buffer exists.
  std::string why_not_compare(const device &d, std::uint64_t bytes, bool beside) const {
    if (o_.no_comparison) return "switched off by --no-comparison";
    if (!d.capabilities().vmm) return "this run grew by copying";
    const std::uint64_t needed = peak_of_copying(bytes, o_.chunk);
    const auto memory = d.memory();
    if (!memory) return memory.error().message();
    std::uint64_t free = memory->free.bytes();
    if (d.driver().is_simulator()) {
      // Its device memory is host memory; some is left to the machine.
      std::uint64_t host = checkpoint::available_host_memory().bytes;
      host -= std::min<std::uint64_t>(host, std::uint64_t{512} << 20);
      free = std::min(free, host);
    }
    if (!beside) free += report_.in_place.mapped;  // released first
    if (needed <= free) return "";
    return fmt::format(
        "not run: it needs {} for the old and the new buffer at once, and {} are free",
        format_bytes(needed), format_bytes(free));
  }

  outcome<void> compare(byte_source &source, const device &d, device_bytes &grown) {
    const bool again = source.rereadable();
    report_.comparison = comparison::refused;
    report_.why_no_comparison = why_not_compare(d, report_.in_place.seen.bytes, !again);
    if (!report_.why_no_comparison.empty()) return {};
    if (again) {
      // Releases the pages, so that both jobs begin with an empty device.
      STILLMAP_RETURN_IF_ERROR(grown.clear());
      STILLMAP_RETURN_IF_ERROR(grown.shrink_to_fit());
      STILLMAP_RETURN_IF_ERROR(grown.synchronize());
      d.space().collect(true);
      STILLMAP_RETURN_IF_ERROR(d.pool()->trim());
    }
    STILLMAP_ASSIGN_OR_RETURN(auto s, stream::create(d));
    STILLMAP_ASSIGN_OR_RETURN(auto v, make_vector(d, "copied", true, s));
    growth_limits limits = limits_;
    limits.most = report_.in_place.seen.bytes;
    constexpr const char *what = "growing by copying";
    if (again) source.rewind();
    auto run = again ? grow_from(source, v, limits, what) : grow_from(grown, v, limits, what);
    if (!run) {
      report_.why_no_comparison = "it failed: " + run.error().line;
      return {};
    }
    report_.by_copying = std::move(*run);
    report_.comparison = comparison::done;
    return {};
  }

  template <class... Values>
  void say(fmt::format_string<Values...> text, Values &&...values) const {
    if (!o_.json) fmt::print("{}\n", fmt::format(text, std::forward<Values>(values)...));
    std::fflush(stdout);
  }

  const growth_demo_options &o_;
  growth_limits limits_;
  demo_report report_;
};

}  // namespace

outcome<exit_status> run_growth_demo(const growth_demo_options &o) {
  if (o.chunk == 0 || o.chunk > (std::uint64_t{4} << 30)) {
    return fail(exit_usage, "--chunk: the size is not from 1 byte to 4 GiB");
  }
  return growth_demo(o).run();
}

}  // namespace stillmap::tool
