#include "stillmap/checkpoint/publication/holder_options.h"

namespace stillmap::publication {

const char *name_of(holder_step s) noexcept {
  static constexpr const char *names[] = {"publish received", "pages received", "ready sent",
                                          "stored",           "published sent", "attach received",
                                          "manifest sent",    "pages sent"};
  return names[static_cast<std::size_t>(s)];
}

}  // namespace stillmap::publication
