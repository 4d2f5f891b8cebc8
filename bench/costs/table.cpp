#include "bench/costs/table.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "stillmap/vmm/base/cuda_errors.h"

namespace stillmap::costs {

void table::add(const call_times &times, const char *by, double x, int threads) {
  for (const auto &[call, kept] : times.all()) {
    if (kept.size() != 0) rows.push_back({call, by, x, threads, kept.summary(), ""});
  }
}

void table::refused(const error &e, const char *by, double x, int threads) {
  rows.push_back({e.operation, by, x, threads, {}, name_of(e)});
}

void table::add_fact(std::string name, std::variant<double, std::string> value, std::string text) {
  facts.push_back({std::move(name), std::move(value), std::move(text)});
}

std::string name_of(const error &e) {
  if (e.code.category() == cuda_category()) return describe_cuda_error(e.code.value()).name;
  return e.code.message();
}

std::string microseconds(double ns) {
  const double us = ns / 1000;
  char text[32];
  std::snprintf(text, sizeof text, us < 10 ? "%.2f" : us < 100 ? "%.1f" : "%.0f", us);
  return text;
}

std::string short_number(double number) {
  const struct {
    double unit;
    const char *letter;
  } units[] = {{1024.0 * 1024 * 1024, "G"}, {1024.0 * 1024, "M"}};
  for (const auto &u : units) {
    if (number >= u.unit && std::fmod(number, u.unit) == 0) {
      return std::to_string(static_cast<long long>(number / u.unit)) + u.letter;
    }
  }
  return std::to_string(static_cast<long long>(number));
}

}  // namespace stillmap::costs
