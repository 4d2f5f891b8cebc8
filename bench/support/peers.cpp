#include "bench/support/peers.h"

#include <dlfcn.h>

#include "stillmap/vmm/context.h"

namespace stillmap::bench {

peer_machine::peer_machine(device d) : dev(std::move(d)) {
  for (int i = 0; i < most_threads; ++i) {
    if (auto s = stream::create(dev)) streams.push_back(std::move(*s));
  }
}

stillmap_peer::stillmap_peer(peer_machine &m) : machine_(m) {
  if (auto made = caching_allocator::create(m.dev)) heap_ = std::move(*made);
}

segments_peer::segments_peer(peer_machine &m) : machine_(m) {
  // It needs a current context when it is made and ended, and where it finds no free memory.
  const context_guard guard(m.dev.driver(), m.dev.context());
  if (auto made = replay::make_segments(m.dev, {})) policy_ = std::move(*made);
}
segments_peer::~segments_peer() {
  const context_guard guard(machine_.dev.driver(), machine_.dev.context());
  policy_.reset();
}

mimalloc_peer::mimalloc_peer(peer_machine &) {
  void *const library = dlopen("libmimalloc.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  malloc_ = reinterpret_cast<void *(*)(std::size_t)>(dlsym(library, "mi_malloc"));
  free_ = reinterpret_cast<void (*)(void *)>(dlsym(library, "mi_free"));
  if (free_ == nullptr) malloc_ = nullptr;
}

}  // namespace stillmap::bench
