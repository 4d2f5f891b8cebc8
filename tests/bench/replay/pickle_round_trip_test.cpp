// What pickle_writer writes, pickle::read reads: values, batches of long lists, strings that come again.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "bench/replay/pickle_reader.h"
#include "stillmap/allocators/report/internal/pickle_writer.h"

namespace stillmap::replay {
namespace {

TEST(pickle_round_trip, each_kind_of_value) {
  pickle_writer w;
  w.begin_dict();
  w.add("number").add(std::uint64_t{5}).next();
  w.add("large").add(std::uint64_t{1} << 40).next();
  w.add("yes").add(true).next();
  w.add("no").add(false).next();
  w.add("text").add("t\xc3\xa4xt").next();
  w.add("pair").add_pair(7, 300).next();
  w.add("again").add("number").next();
  w.add("list").begin_list();
  w.add(std::uint64_t{65536}).next();
  w.end_list().next();
  w.end_dict();
  const std::string bytes = w.take();
  const auto read = pickle::read(bytes);
  ASSERT_TRUE(read) << read.error().message();
  const pickle_value &root = read->root();
  ASSERT_EQ(root.kind, pickle_kind::dict);
  EXPECT_EQ(root.items.size(), 16u);
  EXPECT_EQ(root.find("number")->integer, 5);
  EXPECT_EQ(root.find("large")->integer, std::int64_t{1} << 40);
  EXPECT_EQ(root.find("yes")->kind, pickle_kind::boolean);
  EXPECT_EQ(root.find("yes")->integer, 1);
  EXPECT_EQ(root.find("no")->integer, 0);
  EXPECT_EQ(root.find("text")->text, "t??xt") << "readers reject what is not UTF-8";
  ASSERT_EQ(root.find("pair")->items.size(), 2u);
  EXPECT_EQ(root.find("pair")->items[0]->integer, 7);
  EXPECT_EQ(root.find("pair")->items[1]->integer, 300);
  EXPECT_EQ(root.find("again")->text, "number");
  ASSERT_EQ(root.find("list")->items.size(), 1u);
  EXPECT_EQ(root.find("list")->items[0]->integer, 65536);
  EXPECT_EQ(root.find("missing"), nullptr);
}

// Readers keep a batch on their stack: a long list has several.
TEST(pickle_round_trip, lists_and_dictionaries_of_every_length) {
  for (const std::size_t length : {0, 1, 499, 500, 501, 1000, 1001, 3456}) {
    pickle_writer w;
    w.begin_list();
    w.begin_list();
    for (std::size_t i = 0; i < length; ++i) w.add(std::uint64_t{i}).next();
    w.end_list().next();
    w.begin_dict();
    for (std::size_t i = 0; i < length; ++i) {
      w.add("k" + std::to_string(i)).add(std::uint64_t{i}).next();
    }
    w.end_dict().next();
    w.end_list();
    const std::string bytes = w.take();
    const auto read = pickle::read(bytes);
    ASSERT_TRUE(read) << length << ": " << read.error().message();
    ASSERT_EQ(read->root().items.size(), 2u);
    const pickle_value &list = *read->root().items[0], &dict = *read->root().items[1];
    ASSERT_EQ(list.items.size(), length);
    ASSERT_EQ(dict.items.size(), 2 * length);
    for (std::size_t i = 0; i < length; ++i) {
      ASSERT_EQ(list.items[i]->integer, static_cast<std::int64_t>(i));
    }
    if (length != 0) {
      EXPECT_EQ(dict.find("k" + std::to_string(length - 1))->integer,
                static_cast<std::int64_t>(length - 1));
    }
    // No batch has more than 500 elements: each ends with an operation that appends them.
    EXPECT_GE(static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), 'e')), length / 500);
  }
}

}  // namespace
}  // namespace stillmap::replay
