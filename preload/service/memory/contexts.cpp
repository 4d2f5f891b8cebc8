#include "preload/service/memory/contexts.h"

#include <new>

#include "preload/functions/known_device.h"
#include "preload/service/memory/queued_work.h"
#include "preload/service/serve.h"

namespace stillmap::preload {

constinit contexts::places contexts::first_places_{};
constinit std::atomic<word> contexts::first_{0};
constinit std::atomic<bool> contexts::several_{false};
constinit std::atomic<bool> contexts::missed_{false};

contexts::places *contexts::more_behind(places &last) noexcept {
  places *const made = new (std::nothrow) places;
  if (made == nullptr) return nullptr;
  places *next = nullptr;
  if (last.next.compare_exchange_strong(next, made, std::memory_order_acq_rel)) return made;
  delete made;
  return next;
}

void contexts::note(word context) noexcept {
  if (context == 0 || first_places_.all[0].load(std::memory_order_relaxed) == context) return;
  word first = 0;
  if (!first_.compare_exchange_strong(first, context) && first != context)
    several_.store(true, std::memory_order_release);
  bool known = false;
  each([&](word c) { known = known || c == context; });
  if (known) return;
  // Two threads that note one context may take two places for it, which is harmless.
  for (places *p = &first_places_; p != nullptr;) {
    for (std::atomic<word> &place : p->all) {
      word none = 0;
      if (place.compare_exchange_strong(none, context) || none == context) return;
    }
    places *const next = p->next.load(std::memory_order_acquire);
    p = next != nullptr ? next : more_behind(*p);
  }
  missed_.store(true, std::memory_order_release);
}

bool contexts::forget(word context) noexcept {
  if (context == 0) return false;
  bool was_known = false;
  for (places *p = &first_places_; p != nullptr; p = p->next.load(std::memory_order_acquire)) {
    for (std::atomic<word> &place : p->all) {
      word known = context;
      if (place.compare_exchange_strong(known, 0)) was_known = true;
    }
  }
  return was_known;
}

namespace {

// A context that a call has made current.
template <function f>
driver_code set(word context) noexcept {
  const driver_code result = pass_on<f>(context);
  if (result == code::success) contexts::note(context);
  return result;
}

// One that a call has stored at `to`.
template <function f, class... Arguments>
driver_code create(word to, Arguments... arguments) noexcept {
  const driver_code result = pass_on<f>(to, arguments...);
  if (result == code::success) contexts::note(*reinterpret_cast<const word *>(to));
  return result;
}

}  // namespace

driver_code serve(numbered<function::cuCtxSetCurrent>, word context) noexcept {
  return set<function::cuCtxSetCurrent>(context);
}
driver_code serve(numbered<function::cuCtxPushCurrent>, word context) noexcept {
  return set<function::cuCtxPushCurrent>(context);
}
driver_code serve(numbered<function::cuCtxPushCurrent_v2>, word context) noexcept {
  return set<function::cuCtxPushCurrent_v2>(context);
}
driver_code serve(numbered<function::cuCtxAttach>, word to, number flags) noexcept {
  return create<function::cuCtxAttach>(to, flags);
}
driver_code serve(numbered<function::cuCtxCreate>, word to, number flags, number device) noexcept {
  return create<function::cuCtxCreate>(to, flags, device);
}
driver_code serve(numbered<function::cuCtxCreate_v2>, word to, number flags,
                  number device) noexcept {
  return create<function::cuCtxCreate_v2>(to, flags, device);
}
driver_code serve(numbered<function::cuCtxCreate_v3>, word to, word affinities, number count,
                  number flags, number device) noexcept {
  return create<function::cuCtxCreate_v3>(to, affinities, count, flags, device);
}
driver_code serve(numbered<function::cuCtxCreate_v4>, word to, word parameters, number flags,
                  number device) noexcept {
  return create<function::cuCtxCreate_v4>(to, parameters, flags, device);
}
driver_code serve(numbered<function::cuGLCtxCreate>, word to, number flags,
                  number device) noexcept {
  return create<function::cuGLCtxCreate>(to, flags, device);
}
driver_code serve(numbered<function::cuGLCtxCreate_v2>, word to, number flags,
                  number device) noexcept {
  return create<function::cuGLCtxCreate_v2>(to, flags, device);
}
driver_code serve(numbered<function::cuVDPAUCtxCreate>, word to, number flags, number device,
                  number display, word get_proc_address) noexcept {
  return create<function::cuVDPAUCtxCreate>(to, flags, device, display, get_proc_address);
}
driver_code serve(numbered<function::cuVDPAUCtxCreate_v2>, word to, number flags, number device,
                  number display, word get_proc_address) noexcept {
  return create<function::cuVDPAUCtxCreate_v2>(to, flags, device, display, get_proc_address);
}

driver_code serve(numbered<function::cuGetExportTable>, word table, word id) noexcept {
  const driver_code result = pass_on<function::cuGetExportTable>(table, id);
  if (result == code::success) {
    queued_work::note_unseen_calls();
    known_device::never_again();
  }
  return result;
}

}  // namespace stillmap::preload
