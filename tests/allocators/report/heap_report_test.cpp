// Heap reports: valid JSON with the contents of the map.
#include "stillmap/allocators/report/heap_report.h"

#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using namespace literals;

// Whether a text is one JSON document; nothing is kept of it.
class json_checker {
 public:
  explicit json_checker(const std::string &text) : text_(text) {}
  bool good() { return value() && (space(), at_ == text_.size()); }
  std::size_t where() const { return at_; }

 private:
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool eat(char c) {
    space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(const char *w) {
    if (text_.compare(at_, std::string(w).size(), w) != 0) return false;
    at_ += std::string(w).size();
    return true;
  }
  bool string() {
    if (!eat('"')) return false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return false;
      if (text_[at_] == '\\') ++at_;
    }
    return eat('"');
  }
  bool members(char close, bool keyed) {
    if (eat(close)) return true;
    do {
      if (keyed && (!string() || !eat(':'))) return false;
      if (!value()) return false;
    } while (eat(','));
    return eat(close);
  }
  bool value() {
    space();
    if (eat('{')) return members('}', true);
    if (eat('[')) return members(']', false);
    if (at_ < text_.size() && text_[at_] == '"') return string();
    if (word("true") || word("false") || word("null")) return true;
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ != begin;
  }
  const std::string &text_;
  std::size_t at_ = 0;
};

std::size_t count(const std::string &text, const std::string &what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

class heap_report : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
  }
};

TEST_F(heap_report, is_json_with_all_that_the_map_and_the_history_have) {
  const stream s = make_stream();
  auto heap = std::move(*caching_allocator::create(dev()));
  history_options o;
  o.events = 100;
  o.stack_depth = 3;
  ASSERT_TRUE(heap->record_history(o));
  void *const kept = *heap->allocate(3_MiB, s);
  void *const small = *heap->allocate(100, s);
  heap->set_limit(heap->stats().total.committed);
  EXPECT_FALSE(heap->allocate(1_GiB, s));
  ASSERT_TRUE(heap->free(small));
  auto snapshot = snapshot_of(*heap);
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->device, dev().name());
  EXPECT_EQ(snapshot->ordinal, dev().ordinal());
  ASSERT_TRUE(snapshot->stats);
  EXPECT_EQ(snapshot->stats->total.blocks, 1u);
  snapshot->map.arenas[0].name = "a \"name\"\n";
  const std::string json = to_json(*snapshot).value();
  json_checker checker(json);
  EXPECT_TRUE(checker.good()) << "at byte " << checker.where();
  EXPECT_EQ(count(json, "\"part\": "), snapshot->map.arenas[0].extents.size());
  EXPECT_EQ(count(json, "\"action\": "), snapshot->history.events.size());
  EXPECT_EQ(count(json, "\"action\": \"out_of_memory\""), 1u);
  EXPECT_EQ(count(json, "\"function\": "), count(json, "\"module\": "));
  EXPECT_GE(count(json, "\"function\": "), 3u);
  for (const char *said : {"\"format\": \"stillmap-heap-map\"", "\"version\": 1",
                           "\"requested\": 3145728", "\"slab\": true", "\"part\": \"live\"",
                           has_vmm() ? "\"part\": \"uncommitted\"" : "\"part\": \"free\"",
                           "\"name\": \"a \\\"name\\\"", "\"committed_peak\": ", "\"recorded\": ",
                           "\"lost\": 0", "\"stack_depth\": 3"}) {
    EXPECT_NE(json.find(said), std::string::npos) << said;
  }
  ASSERT_TRUE(heap->free(kept));
}

TEST_F(heap_report, of_nothing_is_json_too) {
  auto heap = std::move(*caching_allocator::create(dev()));
  const auto snapshot = snapshot_of(*heap);
  ASSERT_TRUE(snapshot);
  const std::string json = to_json(*snapshot).value();
  EXPECT_TRUE(json_checker(json).good()) << json;
  EXPECT_EQ(json.find("history"), std::string::npos);
  EXPECT_FALSE(json_checker("{\"a\": 1,}").good()) << "the checker itself";
  EXPECT_FALSE(json_checker("{\"a\": 1} x").good());
}

}  // namespace
}  // namespace stillmap
