#include "bench/costs/arguments.h"

#include <getopt.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "bench/costs/parts.h"

namespace stillmap::costs {
namespace {

constexpr double max_seconds = 86400;
constexpr double quick_seconds = 4;

constexpr option known_options[] = {
    {"help", no_argument, nullptr, 'h'},          {"out", required_argument, nullptr, 'o'},
    {"seconds", required_argument, nullptr, 's'}, {"quick", no_argument, nullptr, 'q'},
    {"only", required_argument, nullptr, 'p'},    {}};

tl::unexpected<std::string> wrong(std::string what) {
  return tl::unexpected<std::string>(std::move(what));
}

bool read_seconds(const std::string &text, double &into) {
  const char *const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, into);
  return code == std::errc() && stop == end && into >= 0 && into <= max_seconds;
}

std::string names_of_parts() {
  std::string out;
  for (const part &p : all_parts()) out += (out.empty() ? "" : ", ") + std::string(p.name);
  return out;
}

bool is_part(const std::string &name) {
  return std::any_of(all_parts().begin(), all_parts().end(),
                     [&](const part &p) { return p.name == name; });
}

}  // namespace

tl::expected<arguments, std::string> parse(int argc, char **argv) {
  arguments into;
  bool has_seconds = false, names_follow = false;  // --only takes all words that follow it
  optind = 0;
  opterr = 0;
  // "-": other words come as 1, in order. ":": a missing value comes as ':'.
  for (int c; (c = ::getopt_long(argc, argv, "-:h", known_options, nullptr)) != -1;) {
    const std::string value = optarg != nullptr ? optarg : "";
    const std::string word = c == '?' || c == ':' ? argv[optind - 1] : "";
    if (c == 'h') {
      into.help = true;
      return into;
    }
    if (c == 'o') into.out = value;
    if (c == 'q') into.options.quick = true;
    if (c == 's') {
      has_seconds = read_seconds(value, into.options.seconds);
      if (!has_seconds) {
        return wrong("--seconds: '" + value + "' is not a number from 0 to 86400");
      }
    }
    if (c == 1 && !names_follow) return wrong("'" + value + "' is one argument too many");
    if (c == 1 || c == 'p') {
      if (!is_part(value)) {
        return wrong("--only: '" + value + "' is not one of " + names_of_parts());
      }
      into.options.only.push_back(value);
    }
    if (c == ':') return wrong(word + " needs a value");
    if (c == '?') {  // optopt is known only where the option is, but not its value
      const bool known = optopt != 0 && word.starts_with("--");
      return wrong(known ? word + ": takes no value" : "there is no option '" + word + "'");
    }
    names_follow = c == 'p' || c == 1;
  }
  if (optind < argc) return wrong("'" + std::string(argv[optind]) + "' is one argument too many");
  if (into.options.quick && !has_seconds) into.options.seconds = quick_seconds;
  return into;
}

std::string help_text() {
  std::string out =
      "Measures what the calls of this machine's CUDA driver cost, and what they wait for.\n\n"
      "Usage: cost_table [OPTIONS]\n\n"
      "Options:\n"
      "  -h, --help        print this help\n"
      "  --out FOLDER      write costs.json, and costs.txt for HOSTCUDA=costs=FILE, here\n"
      "  --seconds N       about how long; what is short of time has fewer samples, but 5 of\n"
      "                    each (default: 240)\n"
      "  --quick           only to see that it runs; the numbers mean nothing\n"
      "  --only PART...    only these parts:\n";
  for (const part &p : all_parts()) {
    out += std::string(20, ' ') + p.name + ": " + p.what + '\n';
  }
  return out;
}

}  // namespace stillmap::costs
