// Each driver call of publish, attach, make_writable and release failed once: what was there before is there
// afterwards, the operation can be repeated, and nothing is left behind.
#include <map>
#include <set>

#include "tests/checkpoint/publication/fixture.h"
#include "tests/support/effort.h"
#include "tests/support/held.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/no_threads.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::held;
namespace control = stillmap::testing::hostcuda_control;

class publication_faults : public publication_fixture {
 protected:
  void SetUp() override {
    publication_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    expect_unreturnable();  // a call that undoes something may be the one that fails
  }

  struct swept {
    std::size_t points = 0, failed = 0;
    std::set<std::string> survived;  // calls without which the operation succeeds
  };
  // Runs `act`, which returns its status, with each of its calls failing. Between `before` and `after` nothing fails.
  swept fail_each(const std::function<void()> &before, const std::function<status()> &act,
                  const std::function<void(const status &, bool reported)> &after) {
    before();
    const driver_counts begun = counts();
    const status done = act();
    const driver_counts spent = counts() - begun;
    EXPECT_TRUE(done) << done.error().message();
    after(done, false);
    swept out;
    for (std::size_t i = 0; i < driver_call_count; ++i) {
      const char *const name = stillmap::name_of(static_cast<driver_call>(i));
      for (std::uint64_t nth = 1; nth <= spent.calls[i];
           nth += stillmap::testing::sweep_stride(3)) {
        SCOPED_TRACE(std::string(name) + ", number " + std::to_string(nth));
        before();
        const std::uint64_t reported = background_error_count();
        control::faults_fired();
        control::fail(name, nth, CUDA_ERROR_OUT_OF_MEMORY);
        const status failed = act();
        control::stop_failing(name);
        const bool fired = control::faults_fired() != 0;
        const bool told = background_error_count() != reported;
        if (fired) {
          ++out.points;
          failed ? void(out.survived.insert(name)) : void(++out.failed);
        } else {
          EXPECT_TRUE(failed) << failed.error().message();
        }
        after(failed, told);
        if (HasFailure()) return out;
      }
    }
    return out;
  }
  void expect_writable(const growable_buffer &b, std::size_t pages, unsigned seed) const {
    for (std::size_t i = 0; i < pages; ++i) {
      EXPECT_TRUE(can_write(b.address() + i * page())) << i;
    }
    put(dev(), b.address(), pattern(pages * page(), seed));
  }
  static void note(const char *what, const swept &s) {
    std::string survived;
    for (const std::string &name : s.survived) survived += ' ' + name;
    std::printf(
        "note: publication, %s: %zu driver calls failed once, %zu refused; without%s it succeeds\n",
        what, s.points, s.failed, survived.empty() ? " none" : survived.c_str());
  }
};

TEST_F(publication_faults, of_publish) {
  std::optional<growable_buffer> memory;
  result<published_memory> published = tl::unexpected(error());
  const swept all =
      fail_each([&] { memory.emplace(exportable(2, "one", 1)); },
                [&] {
                  published = publish_tag("model", "one");
                  return outcome(published);
                },
                [&](const status &s, bool reported) {
                  if (!s) {
                    EXPECT_TRUE(holder_->publications().empty());
                    EXPECT_FALSE(reported);
                    expect_writable(*memory, 2, 1);
                    published = publish_tag("model", "one");
                    ASSERT_DONE(published);
                  }
                  EXPECT_FALSE(can_write(memory->address()));
                  {
                    auto read = attach_elsewhere();
                    ASSERT_DONE(read);
                    EXPECT_TRUE(holds(dev(), read->tagged("one")[0].begin, 2 * page(), 1));
                  }
                  ASSERT_DONE(withdraw(address_, "model"));
                  memory.reset();
                  EXPECT_TRUE(eventually([&] { return holder_->publications().empty(); }));
                });
  EXPECT_GT(all.failed, 3U);
  note("publish", all);
}

TEST_F(publication_faults, of_attach) {
  const growable_buffer memory = exportable(2, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  std::optional<attached_memory> read;
  std::optional<held> start;  // what is reported to be left stays
  const swept all = fail_each(
      [&] { start.emplace(held::now(driver())); },
      [&] {
        attach_options options = elsewhere();
        options.verify = true;
        auto made = attach(dev(), address_, "model", options);
        if (!made) return status(tl::unexpected(made.error()));
        read.emplace(std::move(*made));
        return status();
      },
      [&](const status &s, bool reported) {
        if (s) {
          EXPECT_TRUE(holds(dev(), read->tagged("one")[0].begin, 2 * page(), 1));
        }
        read.reset();
        EXPECT_TRUE(eventually([&] { return holder_->publications()[0].readers.empty(); }));
        const std::string left = reported ? "" : start->more_now(driver());
        EXPECT_EQ(left, "");
      });
  EXPECT_GT(all.failed, 5U);
  note("attach", all);
}

TEST_F(publication_faults, of_make_writable) {
  const growable_buffer memory = exportable(3, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  const stream s = make_stream();
  std::optional<attached_memory> read;
  device_address at;
  const swept all = fail_each(
      [&] {
        read.emplace(std::move(*attach_elsewhere()));
        at = read->tagged("one")[0].begin;
      },
      [&] {
        return read->make_writable({at, page() + 1}, s);
      },
      [&](const status &done, bool) {
        EXPECT_TRUE(holds(dev(), at, 3 * page(), 1));
        EXPECT_EQ(can_write(at), done.has_value());
        EXPECT_EQ(can_write(at + page()), done.has_value());
        EXPECT_FALSE(can_write(at + 2 * page()));
        EXPECT_EQ(read->private_bytes(), done ? 2 * page() : 0);
        ASSERT_DONE(read->make_writable({at, 2 * page()}, s));
        put(dev(), at, pattern(page(), 8));
        EXPECT_TRUE(holds(dev(), memory.address(), 3 * page(), 1));
        read.reset();
        EXPECT_TRUE(eventually([&] { return holder_->publications()[0].readers.empty(); }));
      });
  EXPECT_GT(all.failed, 5U);
  note("make_writable", all);
}

TEST_F(publication_faults, of_release) {
  const growable_buffer memory = exportable(2, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  std::optional<attached_memory> read;
  const swept all = fail_each(
      [&] { read.emplace(std::move(*attach_elsewhere())); }, [&] { return read->release(fence()); },
      [&](const status &, bool) {
        EXPECT_TRUE(eventually([&] { return holder_->publications()[0].readers.empty(); }));
        EXPECT_EQ(read->shared_bytes(), 0U);
        read.reset();
        dev().space().collect();
        EXPECT_EQ(dev().space().stats().live_blocks, 1U);
      });
  EXPECT_GT(all.points, 0U);
  note("release", all);
}

TEST_F(publication_faults, without_descriptors) {
  const growable_buffer memory = exportable(2, "one", 1);
  {
    const stillmap::testing::no_descriptors none;
    EXPECT_FALSE(publish_tag("model", "one"));
    EXPECT_FALSE(attach_elsewhere());
    EXPECT_FALSE(list(address_));
  }
  expect_writable(memory, 2, 1);
  // From each of its steps on.
  for (const step at : {step::connected, step::sealed, step::manifest_sent}) {
    SCOPED_TRACE(name_of(at));
    std::optional<stillmap::testing::no_descriptors> none;
    publish_options options;
    options.timeout = 1s;
    options.on_step = [&](step s) {
      if (s == at) none.emplace();
    };
    const auto published = publish_tag("model", "one", options);
    none.reset();
    ASSERT_FALSE(published);
    expect_writable(memory, 2, 1);
  }
  EXPECT_TRUE(eventually([&] { return list(address_)->empty(); }));
  ASSERT_DONE(publish_tag("model", "one"));
  for (const step at : {step::connected, step::manifest_received, step::reserved}) {
    SCOPED_TRACE(name_of(at));
    std::optional<stillmap::testing::no_descriptors> none;
    attach_options options = elsewhere();
    options.timeout = 1s;
    options.on_step = [&](step s) {
      if (s == at) none.emplace();
    };
    const auto read = attach(dev(), address_, "model", options);
    none.reset();
    EXPECT_FALSE(read && at == step::connected);
  }
  EXPECT_TRUE(eventually([&] { return holder_->publications()[0].readers.empty(); }));
  EXPECT_TRUE(attach_elsewhere());
}

TEST_F(publication_faults, without_threads) {
  const growable_buffer memory = exportable(2, "one", 1);
  {
    const stillmap::testing::no_threads none;
    EXPECT_FALSE(holder::create(address_ + "-2"));
    EXPECT_FALSE(list(address_));
    EXPECT_FALSE(attach_elsewhere());
    publish_options options;
    options.digests = false;  // hostcuda's kernels need threads
    EXPECT_FALSE(publish_tag("model", "one", options));
  }
  expect_writable(memory, 2, 1);
  ASSERT_DONE(publish_tag("model", "one"));
  EXPECT_TRUE(holder::create(address_ + "-2"));
}

}  // namespace
}  // namespace stillmap::publication::testing
