// Requests and answers as bytes: what is written is read again, and nothing else is believed.
#include "stillmap/control/messages.h"

#include <gtest/gtest.h>

#include <random>

namespace stillmap::control {
namespace {

process_status a_status() {
  process_status s;
  s.pid = 4711;
  s.device = "NVIDIA H200";
  s.ordinal = 3;
  s.uuid = {1, 2, 3};
  s.page_bytes = 2 << 20;
  s.memory_total = std::uint64_t{140} << 30;
  s.memory_free = std::uint64_t{139} << 30;
  s.tags = {{"", 1, 2, 3, 0, {}}, {"weights", 4, 5, 6, 7, checkpoint::keep_in::file}};
  s.job = {request_kind::snapshot, std::chrono::milliseconds(1234), 8, 9};
  return s;
}

TEST(messages, what_is_written_is_read_again) {
  const auto s = decode_status(encode(a_status()));
  ASSERT_TRUE(s);
  EXPECT_EQ(encode(*s), encode(a_status()));
  EXPECT_EQ(s->device, "NVIDIA H200");
  EXPECT_EQ(s->tags[1].kept_in, checkpoint::keep_in::file);
  EXPECT_FALSE(s->tags[0].kept_in);
  EXPECT_EQ(s->job.since.count(), 1234);

  const auto r = decode_snapshot(
      encode(snapshot_request{{"a", "b"}, "/x.smi", "/y.smi", image::codec::zstd, true, false}));
  ASSERT_TRUE(r);
  EXPECT_EQ(r->tags, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r->path, "/x.smi");
  EXPECT_EQ(r->parent, "/y.smi");
  EXPECT_EQ(r->compress, image::codec::zstd);
  EXPECT_TRUE(r->replace);
  EXPECT_FALSE(r->verify);

  const auto g = decode_give(encode(give_request{{"a"}, "@x", std::chrono::milliseconds(77)}));
  ASSERT_TRUE(g);
  EXPECT_EQ(g->to, "@x");
  EXPECT_EQ(g->wait.count(), 77);

  image::written w;
  w.image.bytes[3] = std::byte{3};
  w.stored_bytes = 1;
  w.compressed_chunks = 2;
  w.past_page_cache = true;
  const auto written = decode_written(encode(w));
  ASSERT_TRUE(written);
  EXPECT_EQ(written->image, w.image);
  EXPECT_EQ(written->compressed_chunks, 2u);

  const auto given = decode_given(encode(handoff::given_memory{1, 2, 3, 4, false, {5, 6, 7}}));
  ASSERT_TRUE(given);
  EXPECT_EQ(given->bytes, 4u);
  EXPECT_FALSE(given->unmapped);
  EXPECT_EQ(given->to.pid, 5);
}

TEST(messages, failures_keep_their_code_and_their_text) {
  for (const std::error_code code :
       {make_error_code(condition::busy), std::error_code(2, cuda_category()),
        std::error_code(ENOSPC, std::system_category()),
        std::make_error_code(std::errc::operation_canceled)}) {
    const failure f = decode_refusal(encode(failure(error{code, "op", "why", 1, 2})));
    EXPECT_EQ(f.code, code);
    EXPECT_EQ(f.operation, "op");
    EXPECT_EQ(f.reason, "why");
    EXPECT_EQ(f.value, 1u);
    EXPECT_EQ(f.limit, 2u);
    EXPECT_EQ(f.text, (error{code, "op", "why", 1, 2}).message());
  }
  EXPECT_TRUE(failure(error{std::error_code(2, cuda_category())}).is(condition::out_of_memory));
  failure endless(error{make_error_code(condition::busy)});
  endless.text.assign(1 << 20, 'x');
  EXPECT_EQ(decode_refusal(encode(endless)).text.size(), 4096u);
  // A refusal that is none is a failure all the same.
  EXPECT_TRUE(decode_refusal({}).is(condition::corrupt));
  EXPECT_TRUE(decode_refusal(encode(failure(error{}))).is(condition::corrupt));
}

TEST(messages, a_status_is_never_larger_than_an_answer_may_be) {
  process_status s = a_status();
  s.tags.assign(3 * most_tags_told, {std::string(4096, 't'), 1, 2, 3, 4, {}});
  const bytes much = encode(s);
  EXPECT_LE(much.size(), largest_answer);
  const auto read = decode_status(much);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->tags.size() + read->more_tags, 3 * most_tags_told);
  EXPECT_GT(read->tags.size(), 0u);
}

template <class T>
void hold_against(const bytes &good, result<T> (*decode)(bytes_view)) {
  ASSERT_TRUE(decode(good));
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(decode(bytes_view(good).first(n))) << n << " of " << good.size();
  }
  bytes more = good;
  more.push_back({});
  EXPECT_FALSE(decode(more));
  std::mt19937 dice(5);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    // Another message, or none: read within its bounds either way.
    [[maybe_unused]] const auto one = decode(bad);
    for (std::byte &b : bad) {
      if (dice() % 4 == 0) b = static_cast<std::byte>(dice());
    }
    [[maybe_unused]] const auto other = decode(bad);
  }
}

TEST(messages, what_is_cut_off_or_garbled_is_not_believed) {
  hold_against(encode(a_status()), decode_status);
  hold_against(encode(suspend_request{"t", checkpoint::keep_in::file, "/tmp"}), decode_suspend);
  hold_against(encode_resume("t"), decode_resume);
  hold_against(encode(snapshot_request{{"a"}, "/x", "/y"}), decode_snapshot);
  hold_against(encode(give_request{{"a", "b"}, "/x"}), decode_give);
  hold_against(encode(checkpoint::suspended_tag{}), decode_suspended);
  hold_against(encode(image::written{}), decode_written);
  hold_against(encode(handoff::given_memory{}), decode_given);
  hold_against(encode(snapshot_progress{true, 1, 2, 3}), decode_progress);
}

TEST(messages, what_makes_no_sense_is_refused) {
  using checkpoint::keep_in;
  EXPECT_FALSE(decode_suspend(encode(suspend_request{"", keep_in::nothing, ""})));
  EXPECT_FALSE(decode_suspend(encode(suspend_request{"t", keep_in::file, "tmp"})));
  EXPECT_FALSE(decode_suspend(encode(suspend_request{"t", static_cast<keep_in>(3), ""})));
  EXPECT_FALSE(decode_suspend(encode(suspend_request{std::string(5000, 't'), {}, ""})));
  EXPECT_FALSE(decode_resume(encode_resume("")));
  EXPECT_FALSE(decode_snapshot(encode(snapshot_request{{}, "/x", ""})));
  EXPECT_FALSE(decode_snapshot(encode(snapshot_request{{"a", ""}, "/x", ""})));
  EXPECT_FALSE(decode_snapshot(encode(snapshot_request{{"a"}, "x", ""})));
  EXPECT_FALSE(decode_snapshot(encode(snapshot_request{{"a"}, std::string("/x\0y", 4), ""})));
  EXPECT_FALSE(decode_snapshot(encode(snapshot_request{{"a"}, "/x", "y"})));
  EXPECT_FALSE(decode_give(encode(give_request{{"a"}, ""})));
  EXPECT_FALSE(decode_give(encode(give_request{{}, "/x"})));
}

}  // namespace
}  // namespace stillmap::control
