#include <functional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "stillmap/vmm/remap.h"
#include "tests/support/stream_gate.h"
#include "tests/system/fault/sweep.h"

namespace stillmap::testing {
namespace {

std::size_t digest(const void *bytes, std::size_t n) {
  return std::hash<std::string_view>{}({static_cast<const char *>(bytes), n});
}

// What is written and compared of each page of a range: parts at its beginning, middle and end.
std::vector<virtual_range> samples(virtual_range offsets, std::size_t page) {
  constexpr std::size_t bytes = std::size_t{32} << 10;
  std::vector<virtual_range> out;
  for (std::size_t at = 0; at < offsets.bytes; at += page) {
    for (const std::size_t in_page : {std::size_t{0}, page / 2, page - bytes}) {
      out.push_back({offsets.begin + (at + in_page), bytes});
    }
  }
  return out;
}

bool suspended(const device &d, virtual_range range) {
  for (const mapping_record &m : d.space().mappings(range)) {
    if (m.suspended_by != 0) return true;
  }
  return false;
}

void observe_buffer(std::ostream &out, const device &d, const char *name, const bench::tracked &t,
                    bool generations) {
  if (!t.buffer) return;
  const growable_buffer &b = *t.buffer;
  const buffer_stats stats = b.stats();
  out << name << ": " << (b.address() == t.first_address ? "here" : "moved") << " size " << b.size()
      << " capacity " << b.capacity() << " mapped " << b.mapped_bytes() << " reserved "
      << b.reserved() << " generation " << (generations ? b.generation() : 0) << " growths "
      << stats.growths << " relocations " << stats.relocations << " copied " << stats.bytes_copied
      << " pages ";
  const std::size_t page = b.page_bytes();
  for (std::size_t at = 0; page != 0 && at < std::min(b.reserved(), 64 * page); at += page) {
    out << (b.committed(at, page) ? '#' : '.');
  }
  for (const virtual_range r : t.known) {
    const std::size_t offset = static_cast<std::size_t>(r.begin.value());
    out << "\n  bytes at " << offset << ": ";
    if (suspended(d, {b.address() + offset, r.bytes})) {
      out << "suspended";
    } else if (b.committed(offset, r.bytes)) {
      for (const virtual_range s : samples(r, page)) {
        const auto bytes = get(d, b.address() + s.begin.value(), s.bytes);
        out << digest(bytes.data(), bytes.size()) << ' ';
      }
    } else {
      out << "not there";
    }
  }
  for (const mapping_record &m : d.space().mappings(b.range())) {
    if (m.state == mapping_state::retiring) out << " retiring";
    for (const access_grant &g : m.access) out << ' ' << static_cast<int>(g.mode);
  }
  out << '\n';
}

}  // namespace

bench::~bench() {
  let_pass();
  if (sleeper) {
    for (const auto &away : sleeper->suspended()) {
      [[maybe_unused]] const status gone = sleeper->forget(away.tag);
    }
  }
  if (fit) [[maybe_unused]]
    const status back = fit->resume();
  // What was mapped by plan has no owner but the test.
  if (space && !at_hand) {
    remap_plan plan({});
    bool any = false;
    for (const mapping_record &m : dev->space().mappings(space->range())) {
      if (m.state != mapping_state::mapped) continue;
      plan.unmap(m.range);
      any = true;
    }
    const status gone = any ? dev->space().apply(std::move(plan)) : status{};
    if (!gone) report_background_error(gone.error());
  }
}

void bench::hold_fence() {
  held = std::move(*stream::create(*dev));
  hold(held->get());
  idle = *fence::after(*dev, *held);
}

void bench::let_pass() {
  if (!held) return;
  release(held->get());
  // Asked of the driver by hand: this is no part of any operation.
  [[maybe_unused]] const status done = held->synchronize();
  held.reset();
}

void bench::make(tracked &t, std::size_t pages_reserved, std::size_t pages_filled,
                 std::vector<std::shared_ptr<page_pool>> pools) {
  buffer_options options;
  options.reserve_bytes = pages_reserved * page();
  options.pools = std::move(pools);
  options.force_copying = copying;
  auto made = growable_buffer::create(*dev, std::move(options));
  if (!made) throw std::runtime_error(made.error().message());
  t.buffer = std::move(*made);
  if (pages_filled != 0) {
    if (const status r = t.buffer->resize(pages_filled * page()); !r) {
      throw std::runtime_error(r.error().message());
    }
    fill(t, 0, pages_filled * page());
  }
  t.first_address = t.buffer->address();
}

void bench::fill(tracked &t, std::size_t offset, std::size_t bytes) {
  t.known.push_back({device_address(offset), bytes});
  for (const virtual_range r : samples(t.known.back(), page())) {
    put(*dev, t.buffer->address() + r.begin.value(),
        pattern(r.bytes, 1 + static_cast<unsigned>(r.begin.value())));
  }
}

void bench::make_vector(std::size_t elements, std::size_t staging_bytes) {
  make_stream();
  vector_options options;
  options.buffer.reserve_bytes = 256 * page();
  options.buffer.force_copying = copying;
  options.staging_bytes = staging_bytes;
  auto made = device_vector<std::uint32_t>::create(*dev, std::move(options), *s);
  if (!made) throw std::runtime_error(made.error().message());
  v = std::move(*made);
  std::vector<std::uint32_t> values(elements);
  for (std::size_t i = 0; i < elements; ++i)
    values[i] = static_cast<std::uint32_t>(i * 2654435761u);
  if (const status r = v->append(values); !r) throw std::runtime_error(r.error().message());
}

void bench::leave_free(std::size_t pages_free) {
  hostcuda_control::occupy(0, 0);
  const std::size_t free = dev->memory()->free.bytes();
  hostcuda_control::occupy(0, free - pages_free * page());
}

void bench::let_go() {
  v.reset();
  at_hand.reset();
  for (tracked *t : {&a, &b, &c}) t->buffer.reset();
  pages.clear();
  memory.reset();
  fd = exported_fd();
  idle = fence();
  blocker.reset();
  s.reset();
  pool.reset();
}

// Everything that can be seen, addresses aside (they differ from run to run).
std::string bench::observe() {
  std::ostringstream out;
  out << note;
  if (!dev) return out.str();
  // Elements alone: a failed operation may have made room for more.
  if (v) {
    auto values = v->to_host();
    if (!values) throw std::runtime_error(values.error().message());
    out << "vector: " << values->size() << " elements, "
        << digest(values->data(), values->size() * sizeof(std::uint32_t)) << '\n';
    return out.str();
  }
  observe_buffer(out, *dev, "a", a, !sleeper && !fit);
  observe_buffer(out, *dev, "b", b, !sleeper && !fit);
  observe_buffer(out, *dev, "c", c, !sleeper && !fit);
  if (sleeper || fit) dev->space().collect();  // what could not be unmapped at once is tried again
  const address_space_stats ledger = dev->space().stats();
  out << "ledger: reserved " << ledger.reserved_bytes << " mapped " << ledger.mapped_bytes
      << " blocks " << ledger.live_blocks << " mappings " << ledger.live_mappings << " retiring "
      << ledger.retiring_mappings << " suspended " << ledger.suspended_bytes << '\n';
  const auto held_by_others = [&](const char *name, const page_pool &p) {
    const page_pool_stats stats = p.stats();
    out << name << ": " << (stats.created - stats.free).bytes() << " handed out\n";
  };
  if (dev->capabilities().vmm) held_by_others("device's pool", *dev->pool());
  if (pool) held_by_others("pool", *pool);
  out << "pages " << pages.size() << " memory " << (memory ? memory->bytes() : 0) << '\n';
  if (at_hand) {
    out << "mapping of " << at_hand->range().bytes;
    for (const mapping_record &m : dev->space().mappings(at_hand->range())) {
      for (const access_grant &g : m.access) out << ' ' << static_cast<int>(g.mode);
    }
    out << '\n';
  }
  if (space) out << "space of " << space->range().bytes << " gen " << space->generation() << '\n';
  return out.str();
}

}  // namespace stillmap::testing
