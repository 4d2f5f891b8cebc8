// cost_table: what the calls of this machine's driver cost. hostcuda/docs/profiles.md#costs
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench/costs/parts.h"
#include "bench/costs/run.h"
#include "bench/support/host.h"

namespace {

using namespace stillmap::costs;

bool write(const std::filesystem::path &to, const std::string &text) {
  std::ofstream file(to, std::ios::binary);
  file << text;
  file.close();
  if (file) return true;
  std::fprintf(stderr, "cost_table: cannot write %s\n", to.c_str());
  return false;
}

int run(int argc, char **argv) {
  run_options options;
  std::string out;
  CLI::App app(
      "Measures what the calls of this machine's CUDA driver cost, and what they wait for.",
      "cost_table");
  app.add_option("--out", out, "write costs.json, and costs.txt for HOSTCUDA=costs=FILE, here")
      ->type_name("FOLDER");
  CLI::Option *const seconds =
      app.add_option("--seconds", options.seconds,
                     "about how long; what is short of time has fewer samples, but 5 of each "
                     "(default 240)")
          ->type_name("N")
          ->check(CLI::Range(0.0, 86400.0));
  app.add_flag("--quick", options.quick, "only to see that it runs; the numbers mean nothing");
  std::vector<std::string> names;
  std::string known;
  for (const part &p : all_parts()) {
    names.push_back(p.name);
    known += std::string("\n  ") + p.name + ": " + p.what;
  }
  app.add_option("--only", options.only, "only these parts:" + known)
      ->type_name("PART...")
      ->check(CLI::IsMember(names));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &asked_for_help) {
    return app.exit(asked_for_help);
  } catch (const CLI::ParseError &e) {
    std::fprintf(stderr, "cost_table: %s (see cost_table --help)\n", e.what());
    return 2;
  }
  if (options.quick && seconds->count() == 0) options.seconds = 4;
  // Before the measurement, so that a folder that cannot be written does not cost four minutes.
  std::error_code made;
  if (!out.empty()) std::filesystem::create_directories(out, made);
  if (made) {
    std::fprintf(stderr, "cost_table: cannot make the folder %s: %s\n", out.c_str(),
                 made.message().c_str());
    return 1;
  }
  const auto drv = stillmap::bench::find_driver();
  if (!drv) {
    std::fprintf(stderr, "cost_table: no driver: %s\n", drv.error().message().c_str());
    return 1;
  }
  options.progress = [](const std::string &line) {
    std::fprintf(stderr, "cost_table: %s\n", line.c_str());
  };
  const auto measured = measure(**drv, options);
  if (!measured) {
    std::fprintf(stderr, "cost_table: %s\n", measured.error().message().c_str());
    return 1;
  }
  std::fputs(readable(*measured).c_str(), stdout);
  if (out.empty()) return 0;
  const std::filesystem::path folder(out);
  if (!write(folder / "costs.json", json_of(*measured)) ||
      !write(folder / "costs.txt", costs_of(*measured))) {
    return 1;
  }
  std::fprintf(stderr, "cost_table: %s and costs.txt\n", (folder / "costs.json").c_str());
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception &e) {
    std::fprintf(stderr, "cost_table: %s\n", e.what());
    return 1;
  }
}
