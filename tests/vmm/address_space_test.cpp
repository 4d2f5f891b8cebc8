// address_space: queries, plans performed and undone, callbacks, the ceiling of mappings.
#include "stillmap/vmm/address_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/remap.h"
#include "stillmap/vmm/reservation.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::fails_with;
using testing::holds;
using testing::pattern;
using testing::put;
using phase = backing_event::phase;

class address_space_test : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    space_ = std::move(*reservation::create(dev(), 16 * page()));
    if (!dev().pool()->acquire(8, pages_)) throw std::runtime_error("no pages");
  }
  void TearDown() override {
    if (space_) {
      for (const mapping_record &m : dev().space().mappings(space_->range())) {
        remap_plan plan({});
        plan.unmap(m.range);
        EXPECT_TRUE(dev().space().apply(std::move(plan)));
      }
    }
    pages_.clear();
    space_.reset();
    buffer_test::TearDown();
  }

  device_address slot(std::size_t i) const { return space_->range().begin + i * page(); }
  virtual_range slots(std::size_t first, std::size_t n) const { return {slot(first), n * page()}; }
  static std::vector<access_grant> writing() { return {{on_device(0), access_mode::read_write}}; }
  static std::vector<access_grant> reading() { return {{on_device(0), access_mode::read}}; }
  status map(std::size_t first, std::size_t n) {
    remap_plan plan(writing());
    for (std::size_t i = 0; i < n; ++i) plan.map(slot(first + i), pages_.at(first + i));
    return dev().space().apply(std::move(plan));
  }
  status apply(remap_plan &plan) { return dev().space().apply(std::move(plan)); }
  address_space_stats books() const { return dev().space().stats(); }

  std::optional<reservation> space_;
  std::vector<page_ptr> pages_;
};

TEST_F(address_space_test, counts_what_is_there) {
  const address_space_stats before = books();
  EXPECT_EQ(before.reserved_bytes, 16 * page());
  EXPECT_EQ(before.live_blocks, 1u);
  EXPECT_EQ(before.live_mappings, 0u);
  EXPECT_EQ(before.physical.bytes(), 8 * page());
  EXPECT_EQ(before.mapping_ceiling, dev().capabilities().mapping_ceiling);
  ASSERT_TRUE(map(0, 3));
  EXPECT_EQ(books().live_mappings, 3u);
  EXPECT_EQ(books().mapped_bytes, 3 * page());
  EXPECT_EQ(books().retiring_mappings, 0u);
  const auto blocks = dev().space().blocks();
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].range, space_->range());
  EXPECT_EQ(blocks[0].mappings, 3u);
  EXPECT_EQ(blocks[0].mapped_bytes, 3 * page());
  EXPECT_EQ(blocks[0].generation, 1u);
  EXPECT_EQ(dev().space().mappings().size(), 3u);
  EXPECT_EQ(dev().space().mappings({slot(1) + 5, 1}).size(), 1u);
  EXPECT_EQ(dev().space().mappings({slot(1) + 5, page()}).size(), 2u);
  EXPECT_EQ(dev().space().mappings(slots(3, 5)).size(), 0u);
  const auto found = dev().space().mappings(slots(0, 3));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found[i].range, slots(i, 1));
    EXPECT_EQ(found[i].backing, pages_[i]);
  }
}

TEST_F(address_space_test, one_set_access_and_one_unmap_for_a_run) {
  const driver_counts before = counts();
  ASSERT_TRUE(map(0, 4));
  driver_counts spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemMap], 4u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 1u);
  const driver_counts then = counts();
  remap_plan plan({});
  plan.unmap(slots(0, 4));
  ASSERT_TRUE(apply(plan));
  spent = counts() - then;
  EXPECT_EQ(spent[driver_call::MemUnmap], 1u);
  EXPECT_EQ(space_->generation(), 2u);
}

TEST_F(address_space_test, a_plan_does_all_its_steps_as_one_generation) {
  ASSERT_TRUE(map(0, 4));
  put(dev(), slot(0), pattern(page(), 1));
  put(dev(), slot(3), pattern(page(), 4));
  remap_plan plan(writing());
  plan.map(slot(8), pages_[3]);  // a page at a second address
  plan.map(slot(0), pages_[5]);  // in place of another
  plan.unmap(slots(0, 2));
  plan.grant(slots(2, 2), reading());
  ASSERT_TRUE(apply(plan));
  EXPECT_EQ(space_->generation(), 2u);
  EXPECT_TRUE(holds(dev(), slot(8), page(), 4));
  EXPECT_EQ(dev().space().mappings(slots(0, 1)).at(0).backing, pages_[5]);
  EXPECT_TRUE(dev().space().mappings(slots(1, 1)).empty());
  EXPECT_EQ(dev().space().mappings(slots(2, 1)).at(0).access, reading());
  EXPECT_EQ(books().live_mappings, 4u);
  remap_plan nothing(writing());
  EXPECT_TRUE(nothing.empty());
  ASSERT_TRUE(apply(nothing));
  EXPECT_EQ(space_->generation(), 2u);
}

TEST_F(address_space_test, an_alias_maps_the_pages_of_a_range_a_second_time) {
  ASSERT_TRUE(map(0, 4));
  for (std::size_t i = 0; i < 4; ++i) put(dev(), slot(i), pattern(page(), 1 + unsigned(i)));
  const driver_counts before = counts();
  remap_plan plan(writing());
  plan.map(slot(10), pages_[5]);
  plan.alias(slot(8), slots(2, 2));  // the run ends with the page that is new
  plan.alias(slot(12), slots(0, 1));
  EXPECT_FALSE(plan.empty());
  ASSERT_TRUE(apply(plan));
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemMap], 4u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 2u);
  EXPECT_TRUE(holds(dev(), slot(8), page(), 3));
  EXPECT_TRUE(holds(dev(), slot(9), page(), 4));
  EXPECT_TRUE(holds(dev(), slot(12), page(), 1));
  EXPECT_EQ(pages_[2].use_count(), 3u);
  EXPECT_EQ(dev().space().mappings(slots(9, 1)).at(0).backing, pages_[3]);
  EXPECT_EQ(books().live_mappings, 8u);
}

TEST_F(address_space_test, an_alias_that_the_driver_refuses_is_undone) {
  STILLMAP_NEEDS_HOSTCUDA();
  ASSERT_TRUE(map(0, 4));
  testing::hostcuda_control::fail("cuMemMap", 2, CUDA_ERROR_OUT_OF_MEMORY);
  remap_plan plan(writing());
  plan.alias(slot(8), slots(0, 4));
  EXPECT_TRUE(fails_with(apply(plan), errc::out_of_memory, "cuMemMap"));
  EXPECT_EQ(books().live_mappings, 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(pages_[i].use_count(), 2u);
}

TEST_F(address_space_test, refuses_plans_that_do_not_fit_without_a_driver_call) {
  ASSERT_TRUE(map(0, 2));
  const driver_counts before = counts();
  const auto refused = [&](auto make) {
    remap_plan plan(writing());
    make(plan);
    return fails_with(apply(plan), errc::invalid_argument, "address_space::apply");
  };
  EXPECT_TRUE(refused([&](remap_plan &p) { p.map(slot(0), pages_[3]); })) << "mapped already";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.map(slot(16), pages_[3]); })) << "outside";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.map(device_address(64_KiB), pages_[3]); }));
  EXPECT_TRUE(refused([&](remap_plan &p) { p.map(slot(4) + 1, pages_[3]); })) << "misaligned";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.map(slot(4), page_ptr()); })) << "no page";
  EXPECT_TRUE(refused([&](remap_plan &p) {
    p.map(slot(4), pages_[3]);
    p.map(slot(4), pages_[4]);
  })) << "one address twice";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.unmap(slots(5, 1)); })) << "nothing there";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.unmap({slot(0), page() / 2}); })) << "cuts";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.unmap({slot(0) + page() / 2, page()}); }));
  EXPECT_TRUE(refused([&](remap_plan &p) {
    p.unmap(slots(0, 1));
    p.unmap(slots(0, 2));
  })) << "unmapped twice";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.grant(slots(7, 1), reading()); }));
  EXPECT_TRUE(refused([&](remap_plan &p) { p.alias(slot(4), slots(0, 3)); })) << "a gap";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.alias(slot(4), slots(5, 1)); })) << "nothing there";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.alias(slot(4), {slot(0), page() / 2}); })) << "cuts";
  EXPECT_TRUE(refused([&](remap_plan &p) { p.alias(slot(1), slots(0, 1)); })) << "mapped already";
  EXPECT_TRUE(refused([&](remap_plan &p) {
    p.map(slot(5), pages_[3]);
    p.alias(slot(4), slots(0, 2));
  })) << "one address twice";
  // Regression: the ledger had what was not there, and not what was.
  EXPECT_TRUE(refused([&](remap_plan &p) {
    p.suspend(slots(0, 1), 7);
    p.map(slot(0), pages_[3]);
  })) << "a suspended place stays";
  EXPECT_TRUE(refused([&](remap_plan &p) {
    p.unmap(slots(0, 1));
    p.grant(slots(0, 1), reading());
  })) << "of what goes";
  EXPECT_EQ((counts() - before).total(), 0u);
  EXPECT_EQ(space_->generation(), 1u);
  EXPECT_EQ(books().live_mappings, 2u);
}

// Such a plan used to be accepted, and the buffer did not count the page.
TEST_F(address_space_test, refuses_a_plan_that_maps_into_a_growable_buffer) {
  growable_buffer b = make({.reserve_bytes = 8 * page()});
  ASSERT_TRUE(b.resize(page()));
  const auto maps_at = [&](std::size_t i) {
    remap_plan plan(writing());
    plan.map(b.address() + i * page(), pages_[0]);
    return apply(plan);
  };
  EXPECT_TRUE(fails_with(maps_at(1), errc::invalid_argument, "address_space::apply"));
  EXPECT_EQ(b.mapped_bytes(), page());
  // The buffer grows past its reservation to addresses that are its own, too.
  ASSERT_TRUE(b.resize(12 * page()));
  EXPECT_TRUE(fails_with(maps_at(12), errc::invalid_argument, "address_space::apply"));
  EXPECT_EQ(b.mapped_bytes(), 12 * page());
}

TEST_F(address_space_test, a_failed_plan_is_undone_completely) {
  STILLMAP_NEEDS_HOSTCUDA();
  ASSERT_TRUE(map(0, 4));
  for (std::size_t i = 0; i < 4; ++i) put(dev(), slot(i), pattern(page(), 10 + unsigned(i)));
  // The last step is the one refused: replacing comes after everything else.
  remap_plan plan(writing());
  plan.map(slot(8), pages_[4]);
  plan.map(slot(1), pages_[5]);
  plan.unmap(slots(0, 2));
  plan.grant(slots(3, 1), reading());
  testing::hostcuda_control::fail("cuMemMap", 2, CUDA_ERROR_OUT_OF_MEMORY);
  const status s = apply(plan);
  EXPECT_TRUE(fails_with(s, errc::out_of_memory, "cuMemMap"));
  EXPECT_EQ(space_->generation(), 1u);
  EXPECT_EQ(books().live_mappings, 4u);
  EXPECT_EQ(books().mapped_bytes, 4 * page());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(holds(dev(), slot(i), page(), 10 + unsigned(i)));
    put(dev(), slot(i), pattern(page(), 20 + unsigned(i)));
    EXPECT_EQ(dev().space().mappings(slots(i, 1)).at(0).access, writing());
    EXPECT_EQ(pages_[i].use_count(), 2u);
  }
  EXPECT_EQ(pages_[4].use_count(), 1u);
}

// Plans of steps drawn by chance, of which calls fail, and in every third also what would undo them:
// the ledger shows what the driver has, and a failure that was undone changed nothing.
TEST_F(address_space_test, the_ledger_is_right_after_any_plan_that_fails) {
  STILLMAP_NEEDS_HOSTCUDA();
  expect_unreturnable();
  constexpr std::uint64_t me = 7;
  std::mt19937 chance(5);
  const auto draw = [&](std::size_t n) { return std::size_t{chance() % n}; };
  const auto ledger = [&] { return dev().space().mappings(space_->range()); };
  const auto check = [&](bool undone) {
    std::size_t live = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      const auto there = dev().space().mappings(slots(i, 1));
      const bool suspended = !there.empty() && there[0].state == mapping_state::suspended;
      live += there.empty() || suspended ? 0 : 1;
      const context_guard guard(driver(), dev().context());
      const auto held = driver().retain_physical(slot(i));
      const bool backed = !there.empty() && there[0].backing;
      ASSERT_EQ(held.has_value(), backed) << "slot " << i;
      if (!backed) continue;
      EXPECT_EQ(*held, there[0].backing->handle()) << "slot " << i;
      EXPECT_TRUE(driver().release_physical(*held));
      if (undone && !suspended && !there[0].access.empty()) {
        EXPECT_EQ(*driver().get_access(slot(i), on_device(0)), there[0].access[0].mode);
      }
    }
    EXPECT_EQ(books().live_mappings, live);
    EXPECT_EQ(books().mapped_bytes, live * page());
  };
  const auto remove_all = [&] {
    for (const mapping_record &m : ledger()) {
      if (m.state == mapping_state::suspended && m.backing) {  // an undo could not unmap it
        const context_guard guard(driver(), dev().context());
        EXPECT_TRUE(driver().unmap(m.range));
      }
      remap_plan plan({});
      plan.unmap(m.range);
      EXPECT_TRUE(apply(plan));
    }
  };
  std::size_t failed = 0, applied = 0, lost = 0;
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto before = ledger();
    remap_plan plan(writing());
    for (std::size_t steps = 1 + draw(4); steps != 0; --steps) {
      const std::size_t at = draw(16), n = 1 + draw(3), first = draw(16);
      switch (draw(7)) {
        case 0:
          plan.map(slot(at), pages_[draw(8)]);
          break;
        case 1:
          plan.map(slot(at), pages_[draw(8)], reading());
          break;
        case 2:
        case 3:
          plan.alias(slot(at), slots(first, std::min(n, 16 - first)));
          if (draw(2) == 0) plan.unmap(slots(first, std::min(n, 16 - first)));
          break;
        case 4:
          plan.unmap(slots(at, 1));
          if (draw(2) == 0) plan.map(slot(at), pages_[draw(8)]);
          break;
        case 5:
          plan.grant(slots(at, 1), draw(2) == 0 ? reading() : writing());
          break;
        default:
          if (draw(2) == 0) {
            plan.suspend(slots(at, 1), me);
          } else {
            plan.resume(slot(at), pages_[draw(8)], me);
          }
      }
    }
    constexpr const char *calls[] = {"cuMemMap", "cuMemUnmap", "cuMemSetAccess"};
    const bool for_ever = draw(3) == 0;
    if (draw(4) != 0) {
      const char *const which = calls[draw(3)];
      if (for_ever) {
        testing::hostcuda_control::fail_from(which, 1 + draw(4), CUDA_ERROR_UNKNOWN);
      } else {
        testing::hostcuda_control::fail(which, 1 + draw(4), CUDA_ERROR_UNKNOWN);
      }
    }
    const status s = apply(plan);
    for (const char *which : calls) testing::hostcuda_control::stop_failing(which);
    const bool undone = s || !for_ever;
    check(undone);
    if (HasFatalFailure()) return;
    if (s) ++applied;
    if (!s && s.error().code.category() == cuda_category()) ++(undone ? failed : lost);
    if (!s && undone) {
      const auto now = ledger();
      ASSERT_EQ(now.size(), before.size());
      for (std::size_t i = 0; i < now.size(); ++i) {
        EXPECT_EQ(now[i].range, before[i].range);
        EXPECT_EQ(now[i].backing, before[i].backing);
        EXPECT_EQ(now[i].access, before[i].access);
        EXPECT_EQ(now[i].state, before[i].state);
      }
    }
    if (HasFailure()) return;
    if (!undone) remove_all();
  }
  EXPECT_GT(applied, 300u);
  EXPECT_GT(failed, 100u);
  EXPECT_GT(lost, 30u);
  remove_all();
  for (const page_ptr &p : pages_) EXPECT_EQ(p.use_count(), 1u);
}

// The driver refuses the second unmap, and then to map the first page of the first again.
TEST_F(address_space_test, a_buffer_forgets_only_the_page_that_an_undo_lost) {
  STILLMAP_NEEDS_HOSTCUDA();
  expect_unreturnable();
  growable_buffer b = make({.reserve_bytes = 8 * page()});
  ASSERT_TRUE(b.commit(0, 2 * page()));
  ASSERT_TRUE(b.commit(3 * page(), page()));
  put(dev(), b.address() + page(), pattern(page(), 1));
  testing::hostcuda_control::fail("cuMemUnmap", 2, CUDA_ERROR_UNKNOWN);
  testing::hostcuda_control::fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(b.decommit(0, 4 * page()));
  EXPECT_FALSE(b.committed(0, page()));
  EXPECT_TRUE(b.committed(page(), page()));
  EXPECT_TRUE(b.committed(3 * page(), page()));
  EXPECT_EQ(b.mapped_bytes(), 2 * page());
  EXPECT_EQ(books().mapped_bytes, 2 * page());
  EXPECT_TRUE(holds(dev(), b.address() + page(), page(), 1));
  EXPECT_TRUE(b.commit(0, 4 * page()));
}

struct heard {
  phase when;
  virtual_range range;
  std::uint64_t generation;
};

TEST_F(address_space_test, says_before_and_after_what_changes) {
  std::vector<heard> events;
  auto subscription = dev().space().on_backing_change([&](const backing_event &e) {
    events.push_back({e.when, e.range, e.generation});
    EXPECT_EQ(e.block, space_->block().get());
    // Nothing has happened yet, or all of it has.
    EXPECT_EQ(dev().space().stats().live_mappings, e.when == phase::changed ? 2u : 0u);
  });
  ASSERT_TRUE(map(1, 2));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].when, phase::about_to_change);
  EXPECT_EQ(events[1].when, phase::changed);
  for (const heard &e : events) {
    EXPECT_EQ(e.range, slots(1, 2));
    EXPECT_EQ(e.generation, 1u);
  }
  subscription.reset();
  ASSERT_TRUE(map(3, 1));
  EXPECT_EQ(events.size(), 2u) << "nobody listens any more";
}

TEST_F(address_space_test, says_when_a_change_was_abandoned) {
  STILLMAP_NEEDS_HOSTCUDA();
  std::vector<heard> events;
  const auto subscription = dev().space().on_backing_change([&](const backing_event &e) {
    events.push_back({e.when, e.range, e.generation});
  });
  testing::hostcuda_control::fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(map(0, 2));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].when, phase::about_to_change);
  EXPECT_EQ(events[0].generation, 1u);
  EXPECT_EQ(events[1].when, phase::abandoned);
  EXPECT_EQ(events[1].generation, 0u);
  EXPECT_EQ(space_->generation(), 0u);
  EXPECT_EQ(books().live_mappings, 0u);
}

TEST_F(address_space_test, retiring_is_announced_when_it_is_undone) {
  ASSERT_TRUE(map(0, 2));
  std::vector<heard> events;
  const auto subscription = dev().space().on_backing_change([&](const backing_event &e) {
    events.push_back({e.when, e.range, e.generation});
  });
  const stream s = make_stream();
  ASSERT_TRUE(s.synchronize());
  const fence passed_by_now = after(s);
  ASSERT_TRUE(s.synchronize());
  ASSERT_TRUE(dev().space().retire(space_->block(), slots(0, 2), passed_by_now));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].when, phase::changed);
  EXPECT_EQ(books().live_mappings, 0u);
  EXPECT_TRUE(fails_with(dev().space().retire(space_->block(), slots(0, 2), fence()),
                         errc::invalid_argument, "address_space::retire"));
}

TEST_F(address_space_test, retire_refuses_ranges_that_are_not_whole_live_mappings) {
  ASSERT_TRUE(map(0, 2));
  const stream s = make_stream();
  testing::hold(s.get());
  const fence busy = after(s);
  const char *op = "address_space::retire";
  const auto invalid = errc::invalid_argument;
  EXPECT_TRUE(fails_with(dev().space().retire(space_->block(), slots(4, 2), busy), invalid, op));
  EXPECT_TRUE(
      fails_with(dev().space().retire(space_->block(), {slot(0), page() / 2}, busy), invalid, op));
  ASSERT_TRUE(dev().space().retire(space_->block(), slots(0, 1), busy));
  EXPECT_TRUE(fails_with(dev().space().retire(space_->block(), slots(0, 2), busy), invalid, op));
  EXPECT_EQ(books().retiring_mappings, 1u);
  remap_plan plan({});
  plan.unmap(slots(0, 1));
  EXPECT_TRUE(fails_with(apply(plan), invalid, "address_space::apply"))
      << "it is not ours to unmap any more";
  testing::release(s.get());
  dev().space().collect(true);
  EXPECT_EQ(books().retiring_mappings, 0u);
}

class mapping_ceiling : public testing::buffer_test {
 protected:
  // Pages that the driver holds for somebody else in this process: our ledger knows nothing of it.
  class other_user {
   public:
    other_user(const device &d, std::size_t pages)
        : drv_(d.driver()), page_(d.capabilities().page_bytes), guard_(drv_, d.context()) {
      range_ = {*drv_.reserve_addresses(pages * page_, 0, device_address()), pages * page_};
      handle_ = *drv_.create_physical(page_, {on_device(0)});
      for (std::size_t i = 0; i < pages; ++i) {
        EXPECT_TRUE(drv_.map(range_.begin + i * page_, page_, handle_));
      }
      const access_grant grant{on_device(0), access_mode::read_write};
      EXPECT_TRUE(drv_.set_access(range_, &grant, 1));
    }
    other_user(const other_user &) = delete;
    ~other_user() {
      EXPECT_TRUE(drv_.unmap(range_));
      EXPECT_TRUE(drv_.release_physical(handle_));
      EXPECT_TRUE(drv_.free_addresses(range_));
    }

   private:
    const stillmap::driver &drv_;
    std::size_t page_;
    context_guard guard_;
    virtual_range range_;
    physical_handle handle_{};
  };
};

TEST_F(mapping_ceiling, the_drivers_own_is_out_of_memory_and_undone) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  restart_as("profile=h200,mappings=10");
  buffer_options options;
  options.reserve_bytes = 64_MiB;
  growable_buffer b = make(options);
  {
    const other_user two(dev(), 2);
    ASSERT_TRUE(b.resize(8 * page()));
    put(dev(), b.address(), pattern(8 * page(), 1));
    const status s = b.resize(9 * page());
    ASSERT_FALSE(s);
    EXPECT_TRUE(s.error().is(errc::out_of_memory)) << s.error().message();
    EXPECT_EQ(b.mapped_bytes(), 8 * page());
    EXPECT_TRUE(holds(dev(), b.address(), 8 * page(), 1));
  }
  ASSERT_TRUE(b.resize(10 * page()));
}

TEST_F(mapping_ceiling, what_hostcuda_tells_is_ours) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  restart_as("profile=h200,mappings=10");
  EXPECT_EQ(dev().capabilities().mapping_ceiling, 10u);
  {
    growable_buffer b = make();
    ASSERT_TRUE(b.resize(10 * page()));
    EXPECT_TRUE(fails_with(b.resize(11 * page()), errc::address_space_exhausted,
                           "growable_buffer::resize", 11, 10));
    EXPECT_EQ(b.mapped_bytes(), 10 * page());
  }
  // With real bytes a mapping is an area of this process, of which the kernel allows so many.
  std::uint64_t allowed = 0;
  ASSERT_TRUE(std::ifstream("/proc/sys/vm/max_map_count") >> allowed);
  restart_as("profile=h200,backed");
  EXPECT_LT(dev().capabilities().mapping_ceiling, allowed);
}

TEST_F(mapping_ceiling, ours_is_refused_before_the_driver_is_asked) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  restart_as("profile=h200,unbacked");
  const std::size_t ceiling = dev().capabilities().mapping_ceiling;
  const reservation space = *reservation::create(dev(), 4 * page());
  std::vector<page_ptr> one;
  ASSERT_TRUE(dev().pool()->acquire(1, one));
  // As many as may be, by aliases of one page, would take long; the books are told of that many.
  ASSERT_GT(ceiling, 100000u);
  const reservation wide = *reservation::create(dev(), (ceiling + 1) * page());
  remap_plan plan({{on_device(0), access_mode::read_write}});
  for (std::size_t i = 0; i <= ceiling; ++i) {
    plan.map(wide.range().begin + i * page(), one[0]);
  }
  const driver_counts before = counts();
  EXPECT_TRUE(fails_with(dev().space().apply(std::move(plan)), errc::address_space_exhausted,
                         "address_space::apply", ceiling + 1, ceiling));
  EXPECT_EQ((counts() - before).total(), 0u);
}

class without_vmm : public testing::buffer_test {};

TEST_F(without_vmm, pages_and_reservations_say_not_supported) {
  if (has_vmm()) GTEST_SKIP() << "this device has VMM";
  const auto no = errc::not_supported;
  EXPECT_TRUE(
      fails_with(testing::outcome(reservation::create(dev(), page())), no, "reservation::create"));
  EXPECT_TRUE(fails_with(testing::outcome(page_pool::create(dev())), no, "page_pool::create"));
  EXPECT_EQ(dev().capabilities().page_bytes, 2_MiB);
  buffer_options options;
  options.pools = {dev().pool()};
  EXPECT_FALSE(make(options).in_place());
}

}  // namespace
}  // namespace stillmap
