// The measured times and facts, and their formats.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "bench/costs/samples.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::costs {

// The variable that a time is measured against: the meaning of `x` in its row.
namespace against {
inline constexpr const char *nothing = "nothing";    // 0
inline constexpr const char *size = "size";          // bytes
inline constexpr const char *touched = "touched";    // bytes that are written and read
inline constexpr const char *adjacent = "adjacent";  // neighbouring mappings under one call
inline constexpr const char *live = "live";          // existing mappings
inline constexpr const char *threads = "threads";    // that call at the same time
inline constexpr const char *work = "work";          // ms of work on other memory
}  // namespace against

struct row {
  std::string call;  // the driver's name, and the variant: "cuMemCreate (shareable)"
  std::string against;
  double x = 0;
  int threads = 1;
  spread times;
  std::string error;  // of the call, or of a call that it needs; earlier samples may be in `times`
};

struct fact {
  std::string name;  // "capture.global.here.cuMemMap"
  std::variant<double, std::string> value;
  std::string text;  // a sentence
};

struct table {
  std::string device, driver, commit;
  std::string hostcuda;  // its configuration; empty on a GPU
  double seconds = 0;    // run_options::seconds
  bool quick = false;
  std::vector<row> rows;
  std::vector<fact> facts;

  void add(const call_times &times, const char *against, double x, int threads = 1);
  // The call that `e` names was refused.
  void refused(const error &e, const char *against, double x, int threads = 1);
  void add_fact(std::string name, std::variant<double, std::string> value, std::string text);
};

// The driver's own name of the code where it is the driver's.
std::string name_of(const error &e);

std::string json_of(const table &t);      // "stillmap-costs 1"
std::string costs_of(const table &t);     // what hostcuda's costs= reads
std::string readable(const table &t);     // for a terminal
std::string microseconds(double ns);      // "0.41", "38", "1,204"
std::string short_number(double number);  // 1 GiB is "1G"; for counts and bytes

}  // namespace stillmap::costs
