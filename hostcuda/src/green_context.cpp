#include "hostcuda/src/green_context.h"

#include <map>
#include <memory>
#include <mutex>

namespace hostcuda {
namespace {

struct green_table {
  std::mutex mutex;
  std::map<const void *, std::unique_ptr<green_context>> known;
  std::map<const void *, green_context *> converted;
};

green_table &all_green_contexts() {
  static green_table *const t = new green_table;
  return *t;
}

}  // namespace

green_context *add_green_context(context *primary, std::uint64_t life, unsigned multiprocessors) {
  auto fresh = std::make_unique<green_context>();
  green_context *const g = fresh.get();
  g->primary = primary;
  g->life = life;
  g->multiprocessors = multiprocessors;
  green_table &t = all_green_contexts();
  std::lock_guard<std::mutex> lock(t.mutex);
  t.converted[&g->converted] = g;
  t.known.emplace(g, std::move(fresh));
  return g;
}

green_context *find_green_context(const void *handle, bool converted) {
  green_table &t = all_green_contexts();
  std::lock_guard<std::mutex> lock(t.mutex);
  if (converted) {
    const auto it = t.converted.find(handle);
    return it == t.converted.end() ? nullptr : it->second;
  }
  const auto it = t.known.find(handle);
  return it == t.known.end() ? nullptr : it->second.get();
}

CUcontext converted_handle(green_context *g) {
  return reinterpret_cast<CUcontext>(&g->converted);
}

}  // namespace hostcuda
