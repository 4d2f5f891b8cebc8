// cost_table: what the calls of this machine's driver cost. hostcuda/docs/profiles.md#costs
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "bench/costs/arguments.h"
#include "bench/costs/run.h"
#include "bench/costs/table.h"
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
  auto given = parse(argc, argv);
  if (!given) {
    std::fprintf(stderr, "cost_table: %s (see cost_table --help)\n", given.error().c_str());
    return 2;
  }
  if (given->help) {
    std::fputs(help_text().c_str(), stdout);
    return 0;
  }
  run_options &options = given->options;
  const std::string &out = given->out;
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
