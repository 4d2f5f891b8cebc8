#include "python/src/suspenders.h"

#include <map>
#include <mutex>

#include "python/src/devices.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

struct suspenders {
  std::mutex mutex;
  std::map<int, std::shared_ptr<checkpoint::suspender>> all;
};

suspenders &all_suspenders() {
  static suspenders *const made = new suspenders;
  return *made;
}

}  // namespace

std::shared_ptr<checkpoint::suspender> known_suspender(int ordinal) {
  suspenders &s = all_suspenders();
  const std::lock_guard lock(s.mutex);
  const auto found = s.all.find(ordinal);
  return found != s.all.end() ? found->second : nullptr;
}

result<std::shared_ptr<checkpoint::suspender>> suspender_of(int ordinal) {
  STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
  suspenders &s = all_suspenders();
  const std::lock_guard lock(s.mutex);
  std::shared_ptr<checkpoint::suspender> &place = s.all[ordinal];
  if (!place) {
    STILLMAP_ASSIGN_OR_RETURN(place, checkpoint::suspender::create(d));
  }
  return place;
}

}  // namespace stillmap::python
