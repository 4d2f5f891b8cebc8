// The effect of each buffer operation on the model.
#include <algorithm>

#include "tests/support/buffer_model.h"

namespace stillmap::testing {

void buffer_model::adopt(buffer_state &b, growable_buffer made) {
  b.real.emplace(std::move(made));
  b.page = b.real->page_bytes();
  b.in_place = b.real->in_place();
  b.size = b.real->size();
  b.capacity = b.real->capacity();
  b.reserved = b.real->reserved();
  b.address = b.real->address();
  b.generation = b.real->generation();
  b.relocations = b.real->stats().relocations;
}

// Reads back what a success may have changed: where the buffer is and how far it reaches.
void buffer_model::fit_fallback(buffer_state &b) {
  const bool moved = b.real->stats().relocations != b.relocations;
  b.relocations = b.real->stats().relocations;
  if (moved || !b.in_place) b.address = b.real->address();
  b.reserved = b.real->reserved();
  if (b.in_place) return;
  b.capacity = b.real->capacity();
  demand(b.capacity % b.page == 0, "the capacity of a copying buffer is not whole pages");
  std::map<std::size_t, slot_model> now;
  for (std::size_t s = 0; s < b.capacity / b.page; ++s) {
    const auto old = b.slots.find(s);
    if (old != b.slots.end() && !moved) {
      now[s] = old->second;
      continue;
    }
    slot_model &slot = now[s];
    if (old == b.slots.end()) continue;
    for (std::size_t c = 0; c < cells_per_page; ++c) {  // only what was in use is carried over
      const std::size_t end = s * b.page + (c + 1) * (b.page / cells_per_page);
      if (end <= b.size) slot.page->cells[c] = old->second.page->cells[c];
    }
  }
  b.slots = std::move(now);
}

void buffer_model::show(buffer_state &b, const std::vector<std::size_t> &fresh,
                        std::size_t stream) {
  for (const std::size_t s : fresh) {
    slot_model &slot = b.slots[s];
    // Memory that other work may have used before is safe on that stream and after it.
    if (stream != 0) slot.page->users = slot.users = {stream};
  }
}

std::vector<std::size_t> buffer_model::missing(const buffer_state &b, std::size_t first,
                                               std::size_t end) const {
  std::vector<std::size_t> out;
  for (std::size_t s = first; s < end; ++s) {
    if (!b.slots.contains(s)) out.push_back(s);
  }
  return out;
}

buffer_model::stream_set buffer_model::users_of(const buffer_state &b, std::size_t first,
                                                std::size_t end) const {
  stream_set out;
  for (auto it = b.slots.lower_bound(first); it != b.slots.end() && it->first < end; ++it) {
    out.insert(it->second.users.begin(), it->second.users.end());
  }
  return out;
}

// The first thing wrong with a range that should be committed, as the headers have it.
std::optional<errc> buffer_model::check_pages(const buffer_state &b, std::size_t first,
                                              std::size_t n, bool no_forked,
                                              bool no_aliased) const {
  for (std::size_t s = first; s < first + n; ++s) {
    const auto it = b.slots.find(s);
    if (it == b.slots.end()) return errc::invalid_argument;
    if ((no_forked && it->second.forked) || (no_aliased && it->second.surely_aliased())) {
      return errc::busy;
    }
  }
  return std::nullopt;
}

bool buffer_model::perhaps_aliased(const buffer_state &b, std::size_t first,
                                   std::size_t end) const {
  return std::any_of(b.slots.lower_bound(first), b.slots.lower_bound(end),
                     [](const auto &slot) { return slot.second.perhaps_aliased(); });
}

void buffer_model::create(const op &o) {
  buffer_state &b = buffers_[o.arg(0) % max_buffers];
  if (b.real) return;
  const std::uint64_t flags = o.arg(1);
  buffer_state made;
  buffer_options options;
  options.force_copying = (flags & 15) == 15;
  options.reserve_bytes = (o.arg(2) % 64) << 21;
  options.tag = "model";
  if ((flags & 4) != 0) options.peer_devices = device_->capabilities().peers;
  made.pools = (flags & 3) == 3 ? std::vector<std::size_t>{0, 1}
                                : std::vector<std::size_t>{static_cast<std::size_t>(flags & 3)};
  for (const std::size_t p : made.pools) {
    if (!device_->capabilities().vmm) break;
    if (pools_[p] == nullptr) {
      page_pool_options limits;
      if (p == 2) limits.limit = 6 * device_->capabilities().page_bytes;
      if (p == 2) limits.keep_free = 2 * device_->capabilities().page_bytes;
      auto pool = page_pool::create(*device_, limits);
      demand(pool.has_value(), "page_pool::create failed");
      pools_[p] = *pool;
    }
    options.pools.push_back(pools_[p]);
  }
  call("create", std::nullopt, 0, {}, [&]() -> status {
    auto real = growable_buffer::create(*device_, options);
    if (!real) return tl::unexpected(real.error());
    adopt(made, std::move(*real));
    return {};
  });
  if (made.real) b = std::move(made);
}

void buffer_model::grow(const op &o) {
  buffer_state *const b = live(o);
  if (b == nullptr) return;
  const bool resizing = o.name == "resize";
  const std::size_t bytes = o.arg(1) % (std::size_t{256} << 20);
  const std::size_t stream = o.arg(2) % (stream_count + 1);
  const auto consumer = stream_of(o, 2);
  if (consumer && bytes > b->reserved) {  // it may move: other streams' work comes first
    for (const auto &[s, slot] : b->slots) order(stream, *b, s);
  }
  const std::size_t end = divide_up(bytes, b->page);
  std::vector<std::size_t> fresh;
  if (bytes > b->capacity) fresh = missing(*b, b->capacity / b->page, end);
  const std::size_t need = b->in_place ? fresh.size() * b->page : end * b->page;
  const bool grown = call(o.name, std::nullopt, need, b->pools, [&] {
    if (resizing) return consumer ? b->real->resize(bytes, *consumer) : b->real->resize(bytes);
    return consumer ? b->real->reserve(bytes, *consumer) : b->real->reserve(bytes);
  });
  if (!grown) return;
  if (b->in_place) show(*b, fresh, stream);
  fit_fallback(*b);
  demand(b->real->capacity() >= bytes, o.name + " left too little capacity");
  if (!resizing) return;
  const std::size_t cell_bytes = b->page / cells_per_page;
  for (std::size_t c = b->size / cell_bytes; c * cell_bytes < bytes; ++c) {
    if (bytes > b->size) cell(*b, c) = std::nullopt;  // new bytes are unspecified
  }
  b->size = bytes;
}

void buffer_model::commit(const op &o) {
  buffer_state *const b = live(o);
  if (b == nullptr) return;
  const std::size_t first = o.arg(1) % 4096, n = o.arg(2) % 64;
  const auto consumer = stream_of(o, 3);
  std::optional<errc> refused;
  if (b->in_place && (first + n) * b->page > b->reserved) refused = errc::invalid_argument;
  const std::vector<std::size_t> fresh = missing(*b, first, first + n);
  const std::size_t need = b->in_place ? fresh.size() * b->page : (first + n) * b->page;
  const bool done = call("commit", refused, need, b->pools, [&] {
    return consumer ? b->real->commit(first * b->page, n * b->page, *consumer)
                    : b->real->commit(first * b->page, n * b->page);
  });
  if (!done) return;
  if (b->in_place) show(*b, fresh, o.arg(3) % (stream_count + 1));
  fit_fallback(*b);
}

// shrink B MODE, decommit B PAGE N MODE. MODE: 0 the library waits, 1 a fence, 2 a passed one.
void buffer_model::give_back(const op &o) {
  buffer_state *const b = live(o);
  if (b == nullptr) return;
  const bool shrinking = o.name == "shrink";
  const std::size_t first = shrinking ? divide_up(b->size, b->page) : o.arg(1) % 4096;
  const std::size_t n =
      shrinking ? b->reserved / b->page - std::min(first, b->reserved / b->page) : o.arg(2) % 64;
  const std::size_t mode_arg = shrinking ? 1 : 3;
  std::optional<errc> refused;
  if (!shrinking) {
    if (!b->in_place) {
      refused = errc::not_supported;
    } else if ((first + n) * b->page > b->reserved) {
      refused = errc::invalid_argument;
    }
  }
  const bool waits = o.arg(mode_arg) % 3 == 0;
  fence idle;
  if (!waits) {
    idle = fence_for(o, mode_arg,
                     b->in_place ? users_of(*b, first, first + n) : users_of(*b, 0, SIZE_MAX));
  }
  const std::size_t need = b->in_place ? 0 : first * b->page;  // the smaller copy
  const bool done = call(o.name, refused, need, {}, [&] {
    if (shrinking) return waits ? b->real->shrink_to_fit() : b->real->shrink_to_fit(idle);
    return waits ? b->real->decommit(first * b->page, n * b->page)
                 : b->real->decommit(first * b->page, n * b->page, idle);
  });
  if (!done) return;
  if (b->in_place) {
    for (std::size_t s = first; s < first + n; ++s) b->slots.erase(s);
  } else {
    fit_fallback(*b);
  }
}

void buffer_model::close(const op &o) {
  buffer_state *const b = live(o);
  if (b == nullptr) return;
  if (o.arg(1) % 3 == 0) {
    *b = {};
    return;
  }
  const fence idle = fence_for(o, 1, users_of(*b, 0, SIZE_MAX));
  if (!call("close", std::nullopt, 0, {}, [&] { return b->real->close(idle); })) return;
  const status after = b->real->resize(1);
  demand(!after && after.error().is(errc::invalid_argument), "a closed buffer still grows");
  demand(b->real->size() == 0 && b->real->capacity() == 0, "a closed buffer has a size");
  *b = {};
}

void buffer_model::move(const op &o) {
  buffer_state *const b = live(o);
  buffer_state &to = buffers_[o.arg(1) % max_buffers];
  if (b == nullptr || &to == b) return;
  if (to.real) {  // what was there is closed as by its destructor
    *to.real = std::move(*b->real);
    const status after = b->real->reserve(1);
    demand(!after && after.error().is(errc::invalid_argument), "a moved-from buffer grows");
    std::swap(to.real, b->real);
  }
  to = std::move(*b);
  *b = {};
}

void buffer_model::alias(const op &o) {
  buffer_state *const b = live(o);
  buffer_state &to = buffers_[o.arg(3) % max_buffers];
  if (b == nullptr || to.real) return;
  const std::size_t first = o.arg(1) % 4096, n = o.arg(2) % 64, times = o.arg(4) % 8;
  std::optional<errc> refused;
  if (!b->in_place) {
    refused = errc::not_supported;
  } else if ((first + n) * b->page > b->reserved || n == 0 || times == 0) {
    refused = errc::invalid_argument;
  } else {
    refused = check_pages(*b, first, n, true, false);
  }
  buffer_state made;
  made.pools = b->pools;
  const bool done = call("alias", refused, 0, {}, [&]() -> status {
    auto real = b->real->alias(first * b->page, n * b->page, times);
    if (!real) return tl::unexpected(real.error());
    adopt(made, std::move(*real));
    return {};
  });
  if (!done) return;
  demand(made.size == n * times * b->page, "an alias has the wrong size");
  for (std::size_t i = 0; i < n * times; ++i) {
    slot_model &of = b->slots.at(first + i % n);
    of.aliased = true;
    made.slots[i].page = of.page;
    made.slots[i].aliased = true;
  }
  to = std::move(made);
}

void buffer_model::fork(const op &o) {
  buffer_state *const b = live(o);
  buffer_state &to = buffers_[o.arg(1) % max_buffers];
  if (b == nullptr || to.real) return;
  std::optional<errc> refused;
  for (const auto &[s, slot] : b->slots) {
    if (slot.surely_aliased()) refused = errc::busy;
  }
  const bool perhaps_busy = perhaps_aliased(*b, 0, SIZE_MAX);
  buffer_state made;
  made.pools = b->pools;
  const auto forking = [&]() -> status {
    auto real = b->real->fork();
    if (!real) return tl::unexpected(real.error());
    adopt(made, std::move(*real));
    return {};
  };
  if (!call("fork", refused, b->in_place ? 0 : b->capacity, {}, forking, perhaps_busy)) return;
  demand(made.size == b->size, "a fork has another size");
  for (auto &[s, slot] : b->slots) {
    slot_model &copy = made.slots[s];
    if (b->in_place) {
      copy.page = slot.page;
      copy.forked = slot.forked = true;
      slot.aliased = false;
      continue;
    }
    for (std::size_t c = 0; c < cells_per_page; ++c) {
      if (s * b->page + (c + 1) * (b->page / cells_per_page) <= b->size) {
        copy.page->cells[c] = slot.page->cells[c];
      }
    }
  }
  to = std::move(made);
}

void buffer_model::prepare(const op &o) {
  buffer_state *const b = live(o);
  if (b == nullptr) return;
  const std::size_t first = o.arg(1) % 4096, n = o.arg(2) % 64;
  const std::size_t stream = o.arg(3) % stream_count + 1;
  // Any bytes will do: some inside the first and the last page.
  const std::size_t offset = first * b->page + (n != 0 ? 5 : 0);
  const std::size_t bytes = n != 0 ? n * b->page - 10 : 0;
  std::optional<errc> refused;
  if (offset + bytes > (b->in_place ? b->reserved : b->capacity)) {
    refused = errc::invalid_argument;
  } else if (b->in_place) {
    refused = check_pages(*b, first, n, false, false);
  }
  std::vector<std::size_t> shared;
  for (std::size_t s = first; s < first + n && !refused; ++s) {
    if (b->slots.at(s).forked) shared.push_back(s);
  }
  if (!call("make_writable", refused, shared.size() * b->page, b->pools,
            [&] { return b->real->make_writable(offset, bytes, streams_[stream - 1]); })) {
    return;
  }
  for (const std::size_t s : shared) {
    slot_model &slot = b->slots.at(s);
    slot.forked = false;
    if (slot.page.use_count() == 1) continue;
    slot.page = std::make_shared<page_model>(*slot.page);
    slot.page->users.clear();  // the host has waited
    slot.users.clear();
  }
}

void buffer_model::splice(const op &o) {
  buffer_state *const b = live(o);
  buffer_state *const to = live(o, 3);
  if (b == nullptr || to == nullptr) return;
  const std::size_t first = o.arg(1) % 4096, n = o.arg(2) % 64, target = o.arg(4) % 4096;
  std::optional<errc> refused;
  if (!b->in_place) {
    refused = errc::not_supported;
  } else if (to == b) {
    refused = errc::invalid_argument;
  } else if (!to->in_place) {
    refused = errc::not_supported;
  } else if ((first + n) * b->page > b->reserved || (target + n) * b->page > to->reserved) {
    refused = errc::invalid_argument;
  } else {
    refused = check_pages(*b, first, n, true, true);
    if (!refused && missing(*to, target, target + n).size() != n) {
      refused = errc::invalid_argument;
    }
  }
  const bool perhaps_busy = perhaps_aliased(*b, first, first + n);
  const bool waits = o.arg(5) % 3 == 0;
  fence idle;
  if (!waits) idle = fence_for(o, 5, users_of(*b, first, first + n));
  const auto splicing = [&] {
    return waits ? b->real->splice(first * b->page, n * b->page, *to->real, target * b->page)
                 : b->real->splice(first * b->page, n * b->page, *to->real, target * b->page, idle);
  };
  if (!call("splice", refused, 0, {}, splicing, perhaps_busy)) return;
  for (std::size_t i = 0; i < n; ++i) {
    slot_model moved = std::move(b->slots.at(first + i));
    b->slots.erase(first + i);
    moved.users.clear();
    moved.aliased = false;
    to->slots[target + i] = std::move(moved);
  }
}

}  // namespace stillmap::testing
