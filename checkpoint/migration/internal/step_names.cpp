#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {

const char *name_of(step s) noexcept {
  switch (s) {
    case step::described:
      return "described";
    case step::greeted:
      return "greeted";
    case step::prepared:
      return "prepared";
    case step::joined:
      return "joined";
    case step::copied:
      return "copied";
    case step::quiet:
      return "quiet";
    case step::sealed:
      return "sealed";
    case step::verified:
      return "verified";
    case step::intent:
      return "intent";
    case step::committed:
      return "committed";
    case step::told_owner:
      return "told owner";
    case step::released:
      return "released";
    case step::accepted:
      return "accepted";
    case step::reserved:
      return "reserved";
    case step::round_landed:
      return "round landed";
    case step::sealed_here:
      return "sealed here";
    case step::waiting:
      return "waiting";
    case step::commit_received:
      return "commit received";
    case step::owner_recorded:
      return "owner recorded";
    case step::said_owner:
      return "said owner";
    case step::running_recorded:
      return "running recorded";
  }
  return "?";
}

}  // namespace stillmap::migration
