// Must not compile with -Werror where DROP is 1 or 2: an ignored status or result is a warning.
#include "stillmap/vmm/growable_buffer.h"

void use(stillmap::growable_buffer &buffer, const stillmap::device &device) {
#if DROP == 1
  buffer.resize(1);
#elif DROP == 2
  stillmap::growable_buffer::create(device);
#else
  if (!buffer.resize(1) || !stillmap::growable_buffer::create(device)) return;
#endif
}
