// linked_list against std::list.
#include "stillmap/vmm/base/linked_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <list>
#include <random>
#include <utility>
#include <vector>

namespace stillmap {
namespace {

struct thing {
  int number = 0;
  bool in = false;
  list_links<thing> links;
};
using things = linked_list<thing, &thing::links>;

std::vector<int> numbers(const things &l) {
  std::vector<int> forwards, backwards;
  for (const thing *t = l.front(); t != nullptr; t = things::after(*t)) {
    forwards.push_back(t->number);
  }
  for (const thing *t = l.back(); t != nullptr; t = things::before(*t)) {
    backwards.push_back(t->number);
  }
  std::reverse(backwards.begin(), backwards.end());
  EXPECT_EQ(forwards, backwards);
  EXPECT_EQ(forwards.size(), l.size());
  EXPECT_EQ(forwards.empty(), l.empty());
  return forwards;
}

TEST(linked_list, agrees_with_a_list_of_the_standard_library) {
  std::deque<thing> all(40);
  for (int i = 0; i < 40; ++i) all[static_cast<std::size_t>(i)].number = i;
  things a, b;
  std::list<int> plain_a, plain_b;
  std::mt19937 random(7);
  for (int step = 0; step < 5000; ++step) {
    thing &t = all[random() % all.size()];
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        if (std::exchange(t.in, true)) break;
        a.push_back(t);
        plain_a.push_back(t.number);
        break;
      case 3:
        if (std::find(plain_a.begin(), plain_a.end(), t.number) == plain_a.end()) break;
        a.remove(t);
        plain_a.remove(t.number);
        t.in = false;
        break;
      case 4:
        if (thing *const first = a.pop_front()) {
          EXPECT_EQ(first->number, plain_a.front());
          plain_a.pop_front();
          first->in = false;
        }
        break;
      case 5:
        if (thing *const last = a.pop_back()) {
          EXPECT_EQ(last->number, plain_a.back());
          plain_a.pop_back();
          last->in = false;
        }
        break;
      case 6:
        b.append(a);
        plain_b.splice(plain_b.end(), plain_a);
        break;
      default:
        a.swap(b);
        plain_a.swap(plain_b);
    }
    ASSERT_EQ(numbers(a), std::vector<int>(plain_a.begin(), plain_a.end())) << step;
    ASSERT_EQ(numbers(b), std::vector<int>(plain_b.begin(), plain_b.end())) << step;
  }
}

TEST(linked_list, one_that_was_moved_from_is_empty) {
  thing one, two;
  things a;
  a.push_back(one);
  a.push_back(two);
  things b = std::move(a);
  EXPECT_EQ(b.size(), 2u);
  EXPECT_TRUE(a.empty());  // NOLINT: as promised
  EXPECT_EQ(a.pop_front(), nullptr);
}

}  // namespace
}  // namespace stillmap
