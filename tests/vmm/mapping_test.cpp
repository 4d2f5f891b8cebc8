// physical_memory, reservation and mapping, and exporting memory as a file descriptor.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/physical_memory.h"
#include "stillmap/vmm/remap.h"
#include "stillmap/vmm/reservation.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using testing::fails_with;
using testing::holds;
using testing::outcome;
using testing::pattern;
using testing::put;

class by_hand : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  page_ptr a_page() const {
    std::vector<page_ptr> out;
    if (!dev().pool()->acquire(1, out)) throw std::runtime_error("no page");
    return out[0];
  }
  reservation some(std::size_t pages) const {
    auto made = reservation::create(dev(), pages * page());
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  physical_properties exportable() const {
    physical_properties p;
    p.location = on_device(0);
    p.exportable = handle_type::posix_fd;
    return p;
  }
};

// Also where the mapping that was made last is in front of it: the place behind that is looked at first.
TEST_F(by_hand, a_mapped_address_is_refused_before_the_driver_sees_it) {
  const reservation r = some(4);
  remap_plan second({}), first({});
  second.map(r.range().begin + 2 * page(), a_page());
  ASSERT_TRUE(dev().space().apply(std::move(second)));
  first.map(r.range().begin, a_page());
  ASSERT_TRUE(dev().space().apply(std::move(first)));
  const page_ptr more = a_page();
  remap_plan again({});
  again.map(r.range().begin + 2 * page(), more);
  const driver_counts before = counts();
  EXPECT_TRUE(fails_with(dev().space().apply(std::move(again)), errc::invalid_argument,
                         "address_space::apply"));
  EXPECT_EQ((counts() - before).total(), 0u);
  remap_plan end({});
  end.unmap({r.range().begin, 4 * page()});
  EXPECT_TRUE(dev().space().apply(std::move(end)));
}

TEST_F(by_hand, physical_memory_is_counted_and_given_back) {
  {
    auto made = physical_memory::create(dev(), 3 * page());
    ASSERT_TRUE(made);
    EXPECT_EQ(made->bytes(), 3 * page());
    EXPECT_NE(made->handle(), physical_handle::none);
    EXPECT_FALSE(made->imported());
    EXPECT_FALSE(made->shared());
    EXPECT_EQ(made->device(), dev());
    EXPECT_EQ(dev().space().stats().physical.bytes(), 3 * page());
    physical_memory other = std::move(*made);
    EXPECT_EQ(made->handle(), physical_handle::none);  // NOLINT: moved from, on purpose
    physical_memory &same = other;
    other = std::move(same);
    EXPECT_EQ(dev().space().stats().physical.bytes(), 3 * page());
  }
  EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
  EXPECT_EQ(dev().space().stats().physical_peak.bytes(), 3 * page());
}

TEST_F(by_hand, released_memory_is_the_callers) {
  auto made = physical_memory::create(dev(), page());
  ASSERT_TRUE(made);
  const physical_handle h = std::move(*made).release();
  EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
  const context_guard guard(driver(), dev().context());
  EXPECT_TRUE(driver().release_physical(h));
}

TEST_F(by_hand, physical_memory_refuses_what_cannot_be) {
  const char *op = "physical_memory::create";
  EXPECT_TRUE(fails_with(outcome(physical_memory::create(dev(), 0)), errc::invalid_argument, op, 0,
                         page()));
  EXPECT_TRUE(fails_with(outcome(physical_memory::create(dev(), page() + 1)),
                         errc::invalid_argument, op, page() + 1, page()));
  const auto much = physical_memory::create(dev(), round_down(SIZE_MAX / 2, page()));
  ASSERT_FALSE(much);
  EXPECT_TRUE(much.error().is(errc::out_of_memory) || much.error().is(errc::invalid_argument))
      << much.error().message();
  const auto over =
      physical_memory::create(dev(), round_up(dev().total_memory().bytes() + page(), page()));
  EXPECT_TRUE(fails_with(outcome(over), errc::out_of_memory, "cuMemCreate"));
  EXPECT_EQ(over.error().limit, dev().memory()->free.bytes());
  physical_properties nowhere;
  nowhere.location = on_device(99);
  EXPECT_TRUE(fails_with(outcome(physical_memory::create(dev(), page(), nowhere)),
                         errc::invalid_argument, "cuMemCreate"));
}

TEST_F(by_hand, retain_gives_another_handle_to_what_is_mapped) {
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(2 * page()));
  put(dev(), b.address(), pattern(2 * page(), 1));
  auto kept = physical_memory::retain(dev(), b.address() + page() + 17);
  if (!kept && kept.error().is(errc::not_supported)) {
    GTEST_SKIP() << "this driver cannot retain by address";
  }
  ASSERT_TRUE(kept) << kept.error().message();
  EXPECT_EQ(kept->bytes(), page());
  EXPECT_EQ(dev().space().stats().physical.bytes(), 2 * page()) << "counted once";
  EXPECT_TRUE(fails_with(outcome(physical_memory::retain(dev(), b.address() + 3 * page())),
                         errc::invalid_argument, "physical_memory::retain",
                         (b.address() + 3 * page()).value(), 0));
  EXPECT_FALSE(physical_memory::retain(dev(), device_address(4096)));
}

TEST_F(by_hand, an_exported_descriptor_is_the_same_memory_once_imported) {
  if (!dev().capabilities().posix_fd_export)
    GTEST_SKIP() << "this device cannot export pages as fds";
  page_pool_options options;
  options.exportable = handle_type::posix_fd;
  const auto pool = *page_pool::create(dev(), options);
  buffer_options with;
  with.pools = {pool};
  with.reserve_bytes = 4 * page();
  growable_buffer b = make(with);
  ASSERT_TRUE(b.resize(page()));
  put(dev(), b.address(), pattern(page(), 6));
  auto kept = physical_memory::retain(dev(), b.address());
  ASSERT_TRUE(kept) << kept.error().message();
  auto fd = kept->export_fd();
  ASSERT_TRUE(fd) << fd.error().message();
  EXPECT_GE(fd->get(), 0);
  auto imported = physical_memory::import_fd(dev(), *fd, page());
  ASSERT_TRUE(imported) << imported.error().message();
  EXPECT_TRUE(imported->imported());
  *fd = exported_fd();
  EXPECT_EQ(dev().space().stats().physical.bytes(), 2 * page());
  auto adopted = pool->adopt(std::move(*imported));
  ASSERT_TRUE(adopted) << adopted.error().message();
  const reservation r = some(2);
  {
    auto m = mapping::create(r, page(), *adopted);
    ASSERT_TRUE(m) << m.error().message();
    EXPECT_TRUE(holds(dev(), m->range().begin, page(), 6));
    put(dev(), m->range().begin, pattern(page(), 7));
    EXPECT_TRUE(holds(dev(), b.address(), page(), 7));
  }
  *adopted = page_ptr();
  EXPECT_EQ(pool->stats().free.bytes(), 0u) << "imported pages are not pooled";
}

TEST_F(by_hand, what_was_not_made_for_export_is_not_exported) {
  auto made = physical_memory::create(dev(), page());
  ASSERT_TRUE(made);
  const char *op = "physical_memory::export_fd";
  EXPECT_TRUE(fails_with(outcome(made->export_fd()), errc::invalid_argument, op));
  physical_memory other = std::move(*made);
  EXPECT_TRUE(fails_with(outcome(made->export_fd()), errc::invalid_argument, op));
}

TEST_F(by_hand, import_refuses_what_is_no_memory) {
  const char *op = "physical_memory::import_fd";
  EXPECT_TRUE(fails_with(outcome(physical_memory::import_fd(dev(), owned_fd(), page())),
                         errc::invalid_argument, op));
  const owned_fd null(::open("/dev/null", O_RDONLY));
  EXPECT_TRUE(fails_with(outcome(physical_memory::import_fd(dev(), null, 1)),
                         errc::invalid_argument, op, 1, page()));
  EXPECT_FALSE(physical_memory::import_fd(dev(), null, page()));
  EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
}

TEST_F(by_hand, an_fd_is_owned_once) {
  owned_fd a(::open("/dev/null", O_RDONLY));
  const int number = a.get();
  owned_fd b = std::move(a);
  EXPECT_EQ(a.get(), -1);  // NOLINT: moved from, on purpose
  EXPECT_EQ(b.get(), number);
  b = owned_fd();
  EXPECT_EQ(::fcntl(number, F_GETFD), -1) << "closed";
}

TEST_F(by_hand, a_reservation_has_addresses_and_no_memory) {
  reservation_options options;
  options.tag = "arena";
  options.alignment = 16 * page();
  auto made = reservation::create(dev(), 3 * page(), options);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->range().bytes, 3 * page());
  EXPECT_EQ(made->range().begin.value() % (16 * page()), 0u);
  EXPECT_EQ(made->block()->tag(), "arena");
  EXPECT_EQ(made->generation(), 0u);
  EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
  ASSERT_EQ(dev().space().blocks().size(), 1u);
  EXPECT_EQ(dev().space().blocks()[0].tag, "arena");
  EXPECT_EQ(dev().space().block_at(made->range().begin + page()), made->block());
  EXPECT_EQ(dev().space().block_at(made->range().end()), nullptr);
  reservation moved = std::move(*made);
  EXPECT_TRUE(made->range().empty());  // NOLINT: moved from, on purpose
  EXPECT_EQ(made->generation(), 0u);
  EXPECT_TRUE(fails_with(outcome(mapping::create(*made, 0, a_page())), errc::invalid_argument,
                         "mapping::create"));
}

// The one assigned over was the last that kept its device.
TEST_F(by_hand, a_reservation_assigned_over_goes_before_its_device) {
  if (*device::count() < 2) GTEST_SKIP() << "needs two devices";
  std::optional<reservation> r = some(1);
  auto other = reservation::create(open_device(1), page());
  ASSERT_TRUE(other);
  close_device();
  *r = std::move(*other);
  EXPECT_EQ(r->device().ordinal(), 1);
}

TEST_F(by_hand, reservations_refuse_what_cannot_be) {
  const char *op = "reservation::create";
  EXPECT_TRUE(
      fails_with(outcome(reservation::create(dev(), 0)), errc::invalid_argument, op, 0, page()));
  EXPECT_TRUE(fails_with(outcome(reservation::create(dev(), page() + 4096)), errc::invalid_argument,
                         op, page() + 4096, page()));
  reservation_options options;
  options.alignment = 3 * page();
  EXPECT_TRUE(fails_with(outcome(reservation::create(dev(), page(), options)),
                         errc::invalid_argument, op, 3 * page(), 0));
  options = {};
  options.hint = device_address(4096 + 1);
  EXPECT_TRUE(fails_with(outcome(reservation::create(dev(), page(), options)),
                         errc::invalid_argument, op, 4097, page()));
  const std::size_t huge = round_down(SIZE_MAX / 2, page());
  const auto over = reservation::create(dev(), huge);
  EXPECT_TRUE(fails_with(outcome(over), errc::address_space_exhausted, "cuMemAddressReserve"));
  EXPECT_EQ(over.error().value, huge);
  // Regression: the limit was what the probe had reserved, and much more could be.
  const std::size_t limit = over.error().limit;
  EXPECT_GE(limit, dev().capabilities().largest_reservation);
  EXPECT_TRUE(reservation::create(dev(), limit));
  EXPECT_EQ(dev().space().stats().live_blocks, 0u);
}

TEST_F(by_hand, exactly_there_or_not_at_all) {
  const reservation taken = some(4);
  reservation_options options;
  options.hint = taken.range().begin;
  options.exact_address = true;
  const auto refused = reservation::create(dev(), page(), options);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::busy) || refused.error().is(errc::address_space_exhausted))
      << refused.error().message();
  EXPECT_EQ(dev().space().stats().live_blocks, 1u);
}

TEST_F(by_hand, a_mapping_puts_a_page_where_it_is_told) {
  const reservation r = some(4);
  page_ptr p = a_page();
  auto made = mapping::create(r, 2 * page(), p);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(made->range().begin, r.range().begin + 2 * page());
  EXPECT_EQ(made->backing(), p);
  EXPECT_EQ(p.use_count(), 3u) << "mine, the mapping's, the ledger's";
  EXPECT_EQ(r.generation(), 1u);
  put(dev(), made->range().begin, pattern(page(), 1));
  auto again = mapping::create(r, 0, p);
  ASSERT_TRUE(again) << "one page may be at two addresses";
  EXPECT_TRUE(holds(dev(), again->range().begin, page(), 1));
  ASSERT_TRUE(made->unmap(fence()));
  EXPECT_TRUE(made->range().empty());
  EXPECT_TRUE(fails_with(made->unmap(fence()), errc::invalid_argument, "mapping::unmap"));
  EXPECT_TRUE(fails_with(made->set_access({}), errc::invalid_argument, "mapping::set_access"));
  EXPECT_TRUE(holds(dev(), again->range().begin, page(), 1));
}

TEST_F(by_hand, a_mapping_that_is_destroyed_waits_for_the_device) {
  const reservation r = some(2);
  auto unmapped = mapping::create(r, 0, a_page());
  ASSERT_TRUE(unmapped);
  driver_counts before = counts();
  ASSERT_TRUE(unmapped->unmap(fence()));
  EXPECT_EQ((counts() - before)[driver_call::CtxSynchronize], 0u) << "the caller named a fence";
  {
    const auto dropped = mapping::create(r, page(), a_page());
    ASSERT_TRUE(dropped);
    before = counts();
  }
  EXPECT_EQ((counts() - before)[driver_call::CtxSynchronize], 1u);
}

TEST_F(by_hand, mappings_refuse_what_cannot_be) {
  const reservation r = some(2);
  const char *op = "mapping::create";
  EXPECT_TRUE(fails_with(outcome(mapping::create(r, 0, page_ptr())), errc::invalid_argument, op));
  EXPECT_TRUE(fails_with(outcome(mapping::create(r, 2 * page(), a_page())), errc::invalid_argument,
                         op, 2 * page(), 2 * page()));
  EXPECT_TRUE(fails_with(outcome(mapping::create(r, SIZE_MAX, a_page())), errc::invalid_argument,
                         op, SIZE_MAX, 2 * page()));
  EXPECT_TRUE(
      fails_with(outcome(mapping::create(r, page() / 2, a_page())), errc::invalid_argument, op));
  auto first = mapping::create(r, 0, a_page());
  ASSERT_TRUE(first);
  EXPECT_TRUE(fails_with(outcome(mapping::create(r, 0, a_page())), errc::invalid_argument, op,
                         r.range().begin.value(), 0));
  EXPECT_EQ(r.generation(), 1u);
  EXPECT_EQ(dev().space().stats().live_mappings, 1u);
}

TEST_F(by_hand, access_can_be_changed) {
  STILLMAP_NEEDS_HOSTCUDA();
  const reservation r = some(1);
  auto m = mapping::create(r, 0, a_page());
  ASSERT_TRUE(m);
  put(dev(), m->range().begin, pattern(page(), 1));
  ASSERT_TRUE(m->set_access({{on_device(0), access_mode::read}}));
  EXPECT_EQ(r.generation(), 2u);
  {
    const context_guard guard(driver(), dev().context());
    const unsigned char byte = 0;
    EXPECT_FALSE(driver().copy_to_device(m->range().begin, &byte, 1));
    EXPECT_EQ(*driver().get_access(m->range().begin, on_device(0)), access_mode::read);
  }
  EXPECT_TRUE(holds(dev(), m->range().begin, page(), 1));
  EXPECT_EQ(dev().space().mappings(m->range()).at(0).access.at(0).mode, access_mode::read);
  ASSERT_TRUE(m->set_access({{on_device(0), access_mode::read_write}}));
  put(dev(), m->range().begin, pattern(page(), 2));
  EXPECT_FALSE(m->set_access({{on_device(77), access_mode::read_write}}));
  EXPECT_EQ(dev().space().mappings(m->range()).at(0).access.at(0).location, on_device(0));
  EXPECT_TRUE(holds(dev(), m->range().begin, page(), 2));
}

TEST_F(by_hand, mappings_move_and_outlive_their_reservation) {
  std::optional<reservation> r = some(2);
  auto made = mapping::create(*r, 0, a_page());
  auto second = mapping::create(*r, page(), a_page());
  ASSERT_TRUE(made && second);
  r.reset();
  EXPECT_EQ(dev().space().stats().live_blocks, 1u) << "the addresses stay while they are mapped";
  mapping m = std::move(*made);
  put(dev(), m.range().begin, pattern(page(), 1));
  m = std::move(*second);
  EXPECT_EQ(dev().space().stats().live_mappings, 1u);
  mapping &same = m;
  m = std::move(same);
  EXPECT_FALSE(m.range().empty());
}

TEST_F(by_hand, unmapping_under_a_fence_waits_for_it) {
  const reservation r = some(1);
  auto m = mapping::create(r, 0, a_page());
  ASSERT_TRUE(m);
  const stream s = make_stream();
  testing::hold(s.get());
  ASSERT_TRUE(m->unmap(after(s)));
  EXPECT_EQ(dev().space().stats().retiring_mappings, 1u);
  EXPECT_EQ(dev().pool()->stats().free.bytes(), 0u);
  testing::release(s.get());
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(dev().space().collect(), page());
  EXPECT_EQ(dev().pool()->stats().free.bytes(), page());
}

}  // namespace
}  // namespace stillmap
