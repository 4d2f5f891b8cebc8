#include <array>

#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {

const char *name_of(step s) noexcept {
  static constexpr std::array names{"described",
                                    "connected",
                                    "prepared",
                                    "channels open",
                                    "copied",
                                    "ready",
                                    "quiesced",
                                    "sealed",
                                    "verified",
                                    "intent recorded",
                                    "group committed",
                                    "commit sent",
                                    "ownership confirmed",
                                    "released",
                                    "accepted",
                                    "reserved",
                                    "round received",
                                    "seal received",
                                    "awaiting commit",
                                    "commit received",
                                    "ownership recorded",
                                    "ownership sent",
                                    "running recorded"};
  static_assert(names.size() == static_cast<std::size_t>(step::running_recorded) + 1);
  return names[static_cast<std::size_t>(s)];
}

}  // namespace stillmap::migration
