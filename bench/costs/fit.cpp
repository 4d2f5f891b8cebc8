#include "bench/costs/fit.h"

namespace stillmap::costs {
namespace {

double misfit(const std::vector<sized_time> &times, const price &p) {
  double sum = 0;
  for (const sized_time &t : times) {
    const double off = (p.fixed_ns + p.ns_per_mib * t.mib - t.ns) / t.ns;
    sum += off * off;
  }
  return sum;
}

}  // namespace

price fit(const std::vector<sized_time> &all) {
  std::vector<sized_time> times;
  for (const sized_time &t : all) {
    if (t.ns > 0) times.push_back(t);  // relative to 0 there is no error
  }
  if (times.empty()) return {};
  // Weighted sums: of 1, x, x^2, y, xy.
  double s = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
  for (const sized_time &t : times) {
    const double w = 1 / (t.ns * t.ns);
    s += w;
    sx += w * t.mib;
    sxx += w * t.mib * t.mib;
    sy += w * t.ns;
    sxy += w * t.mib * t.ns;
  }
  const price constant{sy / s, 0};
  const double determinant = s * sxx - sx * sx;
  if (determinant <= s * sxx * 1e-12) return constant;  // one size only
  const price free{(sxx * sy - sx * sxy) / determinant, (s * sxy - sx * sy) / determinant};
  if (free.fixed_ns >= 0 && free.ns_per_mib >= 0) return free;
  // The best line without a negative part then has a part that is 0.
  const price slope{0, sxy / sxx};
  return misfit(times, constant) <= misfit(times, slope) ? constant : slope;
}

}  // namespace stillmap::costs
