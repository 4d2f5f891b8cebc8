// Which process an object belongs to, where it has threads: a forked child has a copy of the object and
// none of the threads, and its copies of their locks may be locked for ever. It can neither end the
// object nor use it, so it leaves its copy as it is.
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace stillmap {

class creating_process {
 public:
  // False in a forked child.
  bool is_current() const noexcept { return ::getpid() == id_; }

 private:
  pid_t id_ = ::getpid();
};

}  // namespace stillmap
