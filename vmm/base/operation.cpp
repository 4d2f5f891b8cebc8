#include "stillmap/vmm/base/operation.h"

namespace stillmap {
namespace {

constinit thread_local const char *running = "";

}  // namespace

operation_scope::operation_scope(const char *name) noexcept : outer_(running) {
  if (*outer_ == '\0') running = name;
}

operation_scope::~operation_scope() {
  running = outer_;
}

const char *operation_scope::current() noexcept {
  return running;
}

}  // namespace stillmap
