// Each host allocation of publish, attach and make_writable fails in turn, and each of the holder's while it serves
// them: memory is published or as before, a reader has all of it or nothing, and no client waits for a holder in vain.
#include "tests/support/host_memory_sweep.h"

#include "tests/checkpoint/publication/fixture.h"
#include "tests/support/held.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::allocation_sweep;
using stillmap::testing::fail_each_allocation;
using stillmap::testing::failing_allocation;
using stillmap::testing::failing_thread;
using stillmap::testing::held;
using stillmap::testing::one_in;

class publication_without_host_memory : public publication_fixture {
 protected:
  void SetUp() override {
    publication_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_ONE_PROFILE_DOES();
    expect_unreturnable();
  }
  void end_publication() {
    for (const held_publication &p : holder_->publications()) {
      EXPECT_TRUE(!p.newest || withdraw(address_, p.name));
    }
    EXPECT_TRUE(eventually([&] { return holder_->publications().empty(); }));
  }
  allocation_sweep all_;
};

TEST_F(publication_without_host_memory, a_publisher_has_published_or_is_as_before) {
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const growable_buffer memory = exportable(2, "one", 1);
          const std::string name = "model";
          const std::vector<std::string> tags{"one"};
          const publish_options options;
          const std::uint64_t reported = background_error_count();
          bool in_doubt = false;
          result<published_memory> published = tl::unexpected(error());
          // After the commit the error says so, whatever the cause.
          (void)failing([&]() -> status {
            published = publish(dev(), address_, name, tags, options);
            if (published) return {};
            in_doubt = std::string_view(published.error().reason).starts_with("the holder did not");
            if (in_doubt) return {};
            return tl::unexpected(published.error());
          });
          // Access rights cannot be set back without memory either, which is reported.
          const bool not_undone = background_error_count() != reported;
          EXPECT_TRUE(!not_undone || (all_after && !published));
          EXPECT_EQ(can_write(memory.address()), !published && !in_doubt && !not_undone);
          if (not_undone) return;
          if (!published && !in_doubt) {
            EXPECT_TRUE(eventually([&] { return list(address_)->empty(); }));
            put(dev(), memory.address(), pattern(2 * page(), 1));
            ASSERT_DONE(publish_tag("model", "one"));
          }
          if (!in_doubt) {
            auto read = attach_elsewhere();
            ASSERT_DONE(read);
            EXPECT_TRUE(holds(dev(), read->tagged("one")[0].begin, 2 * page(), 1));
          }
          end_publication();
        },
        all_after, all_after ? one_in(7) : one_in(2));
  }
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(30));
  all_.note("publication::publish");
}

TEST_F(publication_without_host_memory, a_reader_has_all_or_nothing) {
  const growable_buffer memory = exportable(2, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const held before = held::now(driver());
          {
            const auto read = failing([&] { return attach_elsewhere(); });
            if (read) {
              EXPECT_TRUE(holds(dev(), read->tagged("one")[0].begin, 2 * page(), 1));
            }
          }
          EXPECT_TRUE(eventually([&] { return holder_->publications()[0].readers.empty(); }));
          EXPECT_EQ(before.more_now(driver()), "");
        },
        all_after, all_after ? one_in(7) : one_in(1));
  }
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(40));
  all_.note("publication::attach");
}

TEST_F(publication_without_host_memory, pages_are_copied_all_or_none) {
  const growable_buffer memory = exportable(3, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  const stream s = make_stream();
  all_ += fail_each_allocation([&](failing_allocation &failing) {
    auto read = attach_elsewhere();
    ASSERT_DONE(read);
    const device_address at = read->tagged("one")[0].begin;
    const status done = failing([&] { return read->make_writable({at, page() + 1}, s); });
    EXPECT_EQ(read->private_bytes(), done ? 2 * page() : 0);
    EXPECT_TRUE(holds(dev(), at, 3 * page(), 1));
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(can_write(at + i * page()), done.has_value() && i < 2) << i;
    }
  });
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(10));
  all_.note("attached_memory::make_writable");
}

// Its threads begin to fail once the request has come, at the first step of serving it.
TEST_F(publication_without_host_memory, a_holder_publishes_all_or_nothing) {
  failing_thread failing;
  holder_options options;
  options.on_step = [&](holder_step) { failing.begin(); };
  start(std::move(options));
  std::size_t points = 0, published_at_last = 0, in_doubt_points = 0;
  for (std::uint64_t n = 0;; ++n) {
    SCOPED_TRACE(n);
    const growable_buffer memory = exportable(2, "one", 1);
    failing.arm(n);
    const auto published = publish_tag("model", "one");
    const bool happened = failing.happened();
    const bool in_doubt =
        !published && std::string_view(published.error().reason).starts_with("the holder did not");
    EXPECT_EQ(can_write(memory.address()), !published && !in_doubt);
    const std::size_t kept = holder_->publications().size();
    EXPECT_TRUE(in_doubt || kept == (published ? 1U : 0U));
    if (in_doubt) ++in_doubt_points;
    if (published) ++published_at_last;
    end_publication();
    if (!happened) break;
    ++points;
    ASSERT_LT(n, 200U);
  }
  EXPECT_GT(points, 3U);
  // Only the reply to a commit can be lost: eight bytes, in a vector that grows.
  EXPECT_LE(in_doubt_points, 4U);
  std::printf("note: publication, host allocations of the holder failed once: %zu points\n",
              points);
}

TEST_F(publication_without_host_memory, a_holder_serves_a_reader_or_refuses_it) {
  failing_thread failing;
  holder_options options;
  options.on_step = [&](holder_step) { failing.begin(); };
  start(std::move(options));
  const growable_buffer memory = exportable(2, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  for (std::uint64_t n = 0;; ++n) {
    SCOPED_TRACE(n);
    failing.arm(n);
    {
      const auto read = attach_elsewhere();
      EXPECT_TRUE(read || !read.error().is(errc::busy)) << "it waited for the holder";
    }
    if (!failing.happened()) break;
    EXPECT_TRUE(eventually([&] { return holder_->publications()[0].readers.empty(); }));
    EXPECT_TRUE(attach_elsewhere());
    ASSERT_LT(n, 200U);
  }
}

}  // namespace
}  // namespace stillmap::publication::testing
