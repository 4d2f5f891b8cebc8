// What a program that ran with the preload says of itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stillmap::tool {

struct program_report {
  // Sums over all processes and devices; peaks are those of the process with the largest.
  std::uint64_t allocations = 0, live_peak = 0, committed_peak = 0, moved_bytes = 0, refused = 0;
  // Of memory that the driver serves, and whose size is known.
  std::uint64_t driver_allocations = 0, driver_live_peak = 0;
  struct passed {
    std::string kind;
    std::uint64_t calls = 0, bytes = 0;
  };
  std::vector<passed> passed_on;  // those that occurred
  struct function {
    std::string name, served_by, because;
  };
  std::vector<function> functions;     // each once
  std::vector<std::string> documents;  // the files, one of each process
};

// Reads the files of a folder, one of each process.
program_report read_reports(const std::string &folder);

// Lines for a person, each indented by two spaces.
std::string describe(const program_report &r);
std::string explain(const program_report &r);

}  // namespace stillmap::tool
