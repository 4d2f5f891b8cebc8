// Requests and answers as bytes: what is written is read again, and nothing else is believed.
#include "stillmap/checkpoint/control/internal/messages.h"

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
  s.job = {request_kind::migrate,
           std::chrono::milliseconds(1234),
           8,
           9,
           migration::step::copied,
           3,
           10,
           true};
  return s;
}

migrate_request a_migration() {
  migrate_request r;
  r.tags = {"a", "b"};
  r.to = "host:4711";
  r.certificate = "/c";
  r.key = "/k";
  r.authorities = "/a";
  r.name = "me";
  r.fingerprints = {"01", "02"};
  r.records = "/r";
  r.task.bytes[2] = std::byte{9};
  r.pause = std::chrono::milliseconds(1);
  r.most_rounds = 2;
  r.channels = 3;
  r.otherwise = migration::when_it_does_not_converge::give_up;
  r.bytes_per_second = 4;
  r.wait = std::chrono::milliseconds(5);
  r.settle = std::chrono::milliseconds(6);
  return r;
}

migrated an_end(migration::whose w) {
  migrated m;
  m.sent.whose = w;
  m.sent.task.bytes[1] = std::byte{7};
  m.sent.epoch = 3;
  m.sent.to = {"host:1", "name", "ff"};
  m.sent.rounds = 4;
  m.sent.bytes = 5;
  m.sent.bytes_sent = 6;
  m.sent.zero_bytes = 7;
  m.sent.clean_bytes = 8;
  m.sent.resent = 9;
  m.sent.pause = 0.25;
  m.sent.seconds = 2.5;
  m.sent.unmapped = false;
  if (w != migration::whose::destination) {
    m.why = failure(error{make_error_code(errc::busy), "op", "why", 1, 2});
  }
  return m;
}

TEST(messages, what_is_written_about_a_migration_is_read_again) {
  const migrate_request r = a_migration();
  const auto read = decode_migrate(encode(r));
  ASSERT_TRUE(read);
  EXPECT_EQ(encode(*read), encode(r));
  EXPECT_EQ(read->fingerprints, r.fingerprints);
  EXPECT_EQ(read->task, r.task);
  EXPECT_EQ(read->otherwise, r.otherwise);
  EXPECT_EQ(read->settle, r.settle);

  migration::progress p;
  p.at = migration::step::sealed;
  p.round = 2;
  p.bytes = 3;
  p.sent = 4;
  p.round_sent = 5;
  p.round_bytes = 6;
  p.bytes_per_second = 7;
  p.expected_pause = 0.125;
  const auto told = decode_migrating(encode(p));
  ASSERT_TRUE(told);
  EXPECT_EQ(encode(*told), encode(p));
  EXPECT_EQ(told->at, p.at);
  EXPECT_EQ(told->round_bytes, 6u);
  EXPECT_EQ(told->expected_pause, 0.125);

  for (const auto w :
       {migration::whose::source, migration::whose::destination, migration::whose::undecided}) {
    const auto m = decode_migrated(encode(an_end(w)));
    ASSERT_TRUE(m);
    EXPECT_EQ(encode(*m), encode(an_end(w)));
    EXPECT_EQ(m->sent.whose, w);
    EXPECT_EQ(m->sent.pause, 0.25);
    EXPECT_EQ(m->sent.to.name, "name");
    EXPECT_EQ(m->why.reason, w == migration::whose::destination ? "" : "why");
  }
  EXPECT_EQ(decode_aborted(encode(request_kind::snapshot)), request_kind::snapshot);
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
       {make_error_code(errc::busy), std::error_code(2, cuda_category()),
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
  EXPECT_TRUE(failure(error{std::error_code(2, cuda_category())}).is(errc::out_of_memory));
  failure endless(error{make_error_code(errc::busy)});
  endless.text.assign(1 << 20, 'x');
  EXPECT_EQ(decode_refusal(encode(endless)).text.size(), 4096u);
  // A refusal that is none is a failure all the same.
  EXPECT_TRUE(decode_refusal({}).is(errc::corrupt));
  EXPECT_TRUE(decode_refusal(encode(failure(error{}))).is(errc::corrupt));
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
  hold_against(encode(a_migration()), decode_migrate);
  hold_against(encode(migration::progress{}), decode_migrating);
  hold_against(encode(an_end(migration::whose::undecided)), decode_migrated);
  hold_against(encode(request_kind::migrate), decode_aborted);
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
  const auto refused = [](auto change) {
    migrate_request r = a_migration();
    change(r);
    return !decode_migrate(encode(r));
  };
  EXPECT_TRUE(refused([](auto &r) { r.tags.clear(); }));
  EXPECT_TRUE(refused([](auto &r) { r.to.clear(); }));
  EXPECT_TRUE(refused([](auto &r) { r.certificate.clear(); }));
  EXPECT_TRUE(refused([](auto &r) { r.key = "k"; }));
  EXPECT_TRUE(refused([](auto &r) { r.authorities = "a"; }));
  EXPECT_TRUE(refused([](auto &r) { r.records = "r"; }));
  EXPECT_TRUE(refused([](auto &r) { r.fingerprints = {""}; }));
  EXPECT_TRUE(
      refused([](auto &r) { r.otherwise = static_cast<migration::when_it_does_not_converge>(2); }));
  EXPECT_FALSE(refused([](auto &r) { r.records.clear(), r.authorities.clear(); }));
  // Who does not have it knows why.
  migrated m = an_end(migration::whose::undecided);
  m.why = {};
  EXPECT_FALSE(decode_migrated(encode(m)));
}

}  // namespace
}  // namespace stillmap::control
