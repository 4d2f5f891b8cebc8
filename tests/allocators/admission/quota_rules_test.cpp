// Who gets memory, who waits, and who is asked: decisions on tables that the tests write.
#include "stillmap/allocators/admission/quota_rules.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

namespace stillmap {
namespace {

using verdict = quota_rules::verdict;

class quota_rules_test : public ::testing::Test {
 protected:
  quota_rules_test() { table_->header.limit = 100; }
  std::size_t add(std::uint64_t reserved, const quota_terms &terms = {}) {
    const std::size_t i = table_->header.used++;
    share(i) = {quota_holding::of(reserved, static_cast<std::uint32_t>(1000 + i)), terms.minimum,
                terms.maximum};
    exchange(i).priority = terms.priority;
    exchange(i).offers = 7;
    return i;
  }
  void wait(std::size_t i, std::uint64_t bytes, std::uint64_t until = 1000) {
    exchange(i).wait = {.ticket = ++table_->header.last_ticket, .bytes = bytes, .until = until};
    table_->header.waits_until = std::max(table_->header.waits_until, until);
  }
  quota_share &share(std::size_t i) { return table_->shares[i]; }
  quota_exchange &exchange(std::size_t i) { return table_->exchanges[i]; }
  quota_rules rules() const { return {*table_, 500}; }
  quota_rules::decision decide(std::size_t i, std::uint64_t bytes) const {
    return rules().decide(i, bytes);
  }
  verdict what(std::size_t i, std::uint64_t bytes) const { return decide(i, bytes).what; }
  std::vector<std::size_t> targets(std::size_t i, reclaim_kind kind) const {
    std::vector<std::size_t> out;
    for (const auto &t : rules().targets(i, kind)) out.push_back(t.slot);
    return out;
  }
  const std::unique_ptr<quota_table> table_ = std::make_unique<quota_table>();
};

using slots = std::vector<std::size_t>;

TEST_F(quota_rules_test, what_fits_is_granted) {
  const auto a = add(60), b = add(0);
  EXPECT_EQ(what(b, 40), verdict::granted);
  const auto over = decide(b, 41);
  EXPECT_EQ(over.what, verdict::wait);
  EXPECT_EQ(over.missing, 1u);
  EXPECT_EQ(over.left, 40u);
  EXPECT_EQ(what(a, 40), verdict::granted);
  EXPECT_EQ(what(a, 0), verdict::granted);
}

TEST_F(quota_rules_test, minima_are_kept_free_for_their_participants) {
  const auto a = add(0), b = add(0, {.minimum = 30});
  EXPECT_EQ(what(a, 70), verdict::granted);
  EXPECT_EQ(what(a, 71), verdict::beyond_limit) << "it can never have that";
  EXPECT_EQ(decide(a, 71).left, 70u);
  share(a).holding.reserved = 70;
  EXPECT_EQ(what(b, 30), verdict::granted);
  EXPECT_EQ(what(b, 31), verdict::wait);
  EXPECT_EQ(decide(b, 31).missing, 1u);
}

TEST_F(quota_rules_test, a_maximum_is_never_exceeded) {
  const auto a = add(10, {.maximum = 20});
  EXPECT_EQ(what(a, 10), verdict::granted);
  EXPECT_EQ(what(a, 11), verdict::beyond_maximum);
  EXPECT_EQ(what(a, UINT64_MAX), verdict::beyond_maximum) << "no sum wraps around";
  EXPECT_EQ(decide(a, 11).left, 10u);
}

TEST_F(quota_rules_test, what_others_use_on_the_device_counts) {
  const auto a = add(10);
  table_->header.device_bytes = 80;
  table_->header.outside = 30;
  EXPECT_EQ(rules().capacity(), 50u);
  EXPECT_EQ(what(a, 40), verdict::granted);
  EXPECT_EQ(decide(a, 41).missing, 1u);
  table_->header.outside = 90;
  EXPECT_EQ(rules().capacity(), 0u);
  EXPECT_EQ(decide(a, 5).missing, 15u);
  table_->header = {.limit = 100, .used = 1, .device_bytes = 500, .outside = 10};
  EXPECT_EQ(rules().capacity(), 100u) << "the limit is less than the device leaves";
}

// A guaranteed request is served beside what others hold, not beside what they may have.
TEST_F(quota_rules_test, a_minimum_is_as_good_as_the_memory_that_there_is) {
  const auto a = add(90), b = add(0, {.minimum = 20}), c = add(0, {.minimum = 10});
  EXPECT_EQ(what(b, 10), verdict::granted) << "though a holds what is kept for b and c";
  EXPECT_EQ(decide(b, 20).missing, 10u);
  EXPECT_EQ(what(c, 10), verdict::granted);
  EXPECT_EQ(what(a, 1), verdict::beyond_limit);
}

TEST_F(quota_rules_test, a_later_request_leaves_what_an_earlier_one_waits_for) {
  const auto a = add(80), b = add(0), c = add(0);
  wait(b, 50);
  EXPECT_EQ(what(c, 1), verdict::wait) << "20 are free, and kept for b";
  share(a).holding.reserved = 40;
  EXPECT_EQ(what(b, 50), verdict::granted);
  EXPECT_EQ(what(c, 10), verdict::granted);
  EXPECT_EQ(what(c, 11), verdict::wait);
  wait(c, 11);
  EXPECT_TRUE(rules().is_before(b, c));
  EXPECT_FALSE(rules().is_before(c, b));
  EXPECT_TRUE(rules().is_before(c, a)) << "who only asks now comes last";
}

TEST_F(quota_rules_test, a_wait_whose_time_is_over_counts_for_nothing) {
  add(80);
  const auto b = add(0), c = add(0);
  wait(b, 50, 499);
  EXPECT_FALSE(rules().waits(b));
  EXPECT_EQ(what(c, 20), verdict::granted);
}

// A reservation does not even read the exchanges then.
TEST_F(quota_rules_test, what_is_in_the_exchanges_counts_for_nothing_where_nobody_waits) {
  add(80);
  const auto b = add(0), c = add(0);
  wait(b, 50);
  table_->header.waits_until = 0;
  EXPECT_FALSE(rules().waits(b));
  EXPECT_EQ(what(c, 20), verdict::granted);
  table_->header.waits_until = 500;
  EXPECT_EQ(what(c, 20), verdict::granted) << "it is over now";
  table_->header.waits_until = 501;
  EXPECT_EQ(what(c, 20), verdict::wait);
}

TEST_F(quota_rules_test, the_last_wait_ends_when_the_latest_of_all_does) {
  const auto a = add(10), b = add(0);
  EXPECT_EQ(table_->last_wait_ends(), 0u);
  wait(a, 5, 700);
  wait(b, 5, 600);
  EXPECT_EQ(table_->last_wait_ends(), 700u);
  exchange(a).wait = {};
  EXPECT_EQ(table_->last_wait_ends(), 600u);
}

TEST_F(quota_rules_test, a_higher_priority_comes_first_until_it_has_overtaken_too_often) {
  add(80);
  const auto b = add(0), c = add(0, {.priority = 1});
  wait(b, 50);
  EXPECT_EQ(what(c, 20), verdict::granted);
  EXPECT_FALSE(rules().is_before(b, c));
  wait(c, 30);
  EXPECT_TRUE(rules().is_before(c, b));
  exchange(b).wait.overtaken = quota_rules::max_overtaken;
  EXPECT_TRUE(rules().is_before(b, c));
  EXPECT_EQ(what(c, 20), verdict::wait);
}

TEST_F(quota_rules_test, a_request_within_the_minimum_waits_for_nobody) {
  add(60);
  const auto b = add(0), c = add(0, {.minimum = 20});
  wait(b, 50);
  EXPECT_EQ(what(c, 20), verdict::granted);
  EXPECT_EQ(what(c, 21), verdict::wait);
}

TEST_F(quota_rules_test, what_is_available_is_the_most_that_is_granted) {
  std::mt19937 random(51);
  const auto below = [&](std::uint64_t n) { return random() % (n + 1); };
  for (int table = 0; table < 2000; ++table) {
    *table_ = {};
    table_->header.limit = 100;
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t minimum = below(30);
      add(below(40), {.minimum = minimum,
                      .maximum = below(1) != 0 ? UINT64_MAX : minimum + below(60),
                      .priority = static_cast<std::int32_t>(below(1))});
    }
    if (below(1) != 0) table_->header.device_bytes = 100, table_->header.outside = below(40);
    if (below(1) != 0) wait(below(2), 1 + below(50));
    for (std::size_t i = 0; i < 3; ++i) {
      std::uint64_t most = 0;
      for (std::uint64_t bytes = 1; bytes <= 120; ++bytes) {
        if (what(i, bytes) == verdict::granted) most = bytes;
      }
      ASSERT_EQ(rules().available(i), most) << "table " << table << ", participant " << i;
    }
  }
}

TEST_F(quota_rules_test, those_with_most_above_their_minimum_are_asked_first) {
  const auto a = add(20), b = add(30, {.minimum = 25}), c = add(25), me = add(0);
  add(5, {.minimum = 5});
  EXPECT_EQ(targets(me, reclaim_kind::cached), (slots{c, a, b}));
  exchange(a).priority = -1;
  EXPECT_EQ(targets(me, reclaim_kind::cached), (slots{a, c, b})) << "the lowest priority first";
  exchange(c).offers = 1;
  EXPECT_EQ(targets(me, reclaim_kind::evictable), (slots{a, b}));
}

TEST_F(quota_rules_test, what_costs_something_is_not_taken_from_those_before) {
  const auto higher = add(30, {.priority = 1}), equal = add(20), earlier = add(40), me = add(0);
  wait(earlier, 20);
  wait(me, 50);
  EXPECT_EQ(targets(me, reclaim_kind::cached), (slots{earlier, equal, higher}));
  EXPECT_EQ(targets(me, reclaim_kind::evictable), (slots{equal}));
  EXPECT_EQ(targets(me, reclaim_kind::task), (slots{equal}));
  EXPECT_EQ(targets(earlier, reclaim_kind::evictable), (slots{equal}))
      << "one of two that wait may ask the other, and " << me << " holds nothing";
  share(me).holding.reserved = 5;
  EXPECT_EQ(targets(earlier, reclaim_kind::evictable), (slots{equal, me}));
}

// Otherwise neither might ask the other: found by the model.
TEST_F(quota_rules_test, one_that_was_overtaken_may_ask_a_higher_priority_that_comes_after_it) {
  const auto low = add(50), high = add(50, {.priority = 1});
  wait(low, 10);
  wait(high, 10);
  EXPECT_EQ(targets(low, reclaim_kind::evictable), (slots{}));
  EXPECT_EQ(targets(high, reclaim_kind::evictable), (slots{low}));
  exchange(low).wait.overtaken = quota_rules::max_overtaken;
  EXPECT_EQ(targets(low, reclaim_kind::evictable), (slots{high}));
  EXPECT_EQ(targets(high, reclaim_kind::evictable), (slots{}));
}

TEST_F(quota_rules_test, an_ask_of_one_that_waits_no_more_is_nobodys) {
  add(50);
  const auto b = add(0);
  quota_ask a{.number = 1, .bytes = 5, .ticket = 1, .by = static_cast<std::uint32_t>(b)};
  EXPECT_FALSE(rules().is_asking(a));
  wait(b, 5);
  EXPECT_TRUE(rules().is_asking(a));
  a.ticket = 7;
  EXPECT_FALSE(rules().is_asking(a));
  a.by = 999;
  EXPECT_FALSE(rules().is_asking(a));
}

}  // namespace
}  // namespace stillmap
