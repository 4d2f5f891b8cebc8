// Messages of the control protocol: encoded and decoded, truncated, and with flipped bits.
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
  s.tags = {{"", 1, 2, 3, 0, {}}, {"weights", 4, 5, 6, 7, checkpoint::backing_store::file}};
  s.job = {request_kind::migrate,
           std::chrono::milliseconds(1234),
           8,
           9,
           migration::step::copied,
           3,
           10,
           true};
  s.published_bytes = 11;
  s.memory = memory_figures{12, 13, 14, 15, "gpu0"};
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
  r.max_downtime = std::chrono::milliseconds(1);
  r.max_rounds = 2;
  r.channels = 3;
  r.on_no_convergence = migration::no_convergence::cancel;
  r.bytes_per_second = 4;
  r.timeout = std::chrono::milliseconds(5);
  r.resolve_timeout = std::chrono::milliseconds(6);
  r.group.bytes[3] = std::byte{7};
  r.decider = "host:4712";
  r.group_timeout = std::chrono::milliseconds(8);
  r.only_tls = true;
  return r;
}

migration::sent_memory an_outcome(migration::owner w) {
  migration::sent_memory m;
  m.owner = w;
  m.task.bytes[1] = std::byte{7};
  m.epoch = 3;
  m.to = {"host:1", "name", "ff"};
  m.rounds = 4;
  m.bytes = 5;
  m.bytes_sent = 6;
  m.zero_bytes = 7;
  m.unchanged_bytes = 8;
  m.resent_chunks = 9;
  m.downtime = std::chrono::milliseconds(250);
  m.elapsed = std::chrono::milliseconds(2500);
  m.unmapped = false;
  m.data_transport = "ucx";
  if (w != migration::owner::destination) {
    m.failure = make_error(errc::busy, "why", 1, 2).value();
  }
  return m;
}

TEST(messages, what_is_written_about_a_migration_is_read_again) {
  const migrate_request r = a_migration();
  const auto read = decode<migrate_request>(encode(r));
  ASSERT_TRUE(read);
  EXPECT_EQ(encode(*read), encode(r));
  EXPECT_EQ(read->fingerprints, r.fingerprints);
  EXPECT_EQ(read->task, r.task);
  EXPECT_EQ(read->on_no_convergence, r.on_no_convergence);
  EXPECT_EQ(read->resolve_timeout, r.resolve_timeout);
  EXPECT_EQ(read->group, r.group);
  EXPECT_EQ(read->decider, r.decider);
  EXPECT_EQ(read->group_timeout, r.group_timeout);
  EXPECT_TRUE(read->only_tls);

  migration::progress p;
  p.step = migration::step::sealed;
  p.round = 2;
  p.bytes = 3;
  p.bytes_sent = 4;
  p.round_sent = 5;
  p.round_bytes = 6;
  p.bytes_per_second = 7;
  p.expected_downtime = std::chrono::milliseconds(125);
  p.expected_scan = std::chrono::milliseconds(100);
  p.stopping = true;
  const auto told = decode<migration::progress>(encode(p));
  ASSERT_TRUE(told);
  EXPECT_EQ(encode(*told), encode(p));
  EXPECT_EQ(told->step, p.step);
  EXPECT_EQ(told->round_bytes, 6u);
  EXPECT_EQ(told->expected_downtime, p.expected_downtime);
  EXPECT_EQ(told->expected_scan, p.expected_scan);
  EXPECT_TRUE(told->stopping);

  for (const auto w :
       {migration::owner::source, migration::owner::destination, migration::owner::in_doubt}) {
    const auto m = decode<migration::sent_memory>(encode(an_outcome(w)));
    ASSERT_TRUE(m);
    EXPECT_EQ(m->owner, w);
    EXPECT_EQ(m->downtime, std::chrono::milliseconds(250));
    EXPECT_EQ(m->to.name, "name");
    EXPECT_EQ(m->data_transport, "ucx");
    EXPECT_FALSE(m->data_fallback);
    if (w == migration::owner::destination) {
      EXPECT_EQ(encode(*m), encode(an_outcome(w)));
      EXPECT_FALSE(m->failure);
    } else {
      ASSERT_TRUE(m->failure);
      EXPECT_TRUE(m->failure->is(errc::busy));
      EXPECT_EQ(m->failure->detail().cause, an_outcome(w).failure->message());
    }
  }
  migration::sent_memory over_tls = an_outcome(migration::owner::destination);
  over_tls.data_fallback = make_error(errc::not_supported, "only one has it").value().about("ucx");
  const auto fell_back = decode<migration::sent_memory>(encode(over_tls));
  ASSERT_TRUE(fell_back && fell_back->data_fallback);
  EXPECT_FALSE(fell_back->failure);
  EXPECT_TRUE(fell_back->data_fallback->is(errc::not_supported));
  EXPECT_EQ(fell_back->data_fallback->detail().cause, over_tls.data_fallback->message());
  EXPECT_EQ(decode<request_kind>(encode(request_kind::snapshot)), request_kind::snapshot);
  EXPECT_EQ(decode<request_kind>(encode(request_kind::restore)), request_kind::restore);
}

TEST(messages, what_is_written_is_read_again) {
  const auto s = decode<process_status>(encode(a_status()));
  ASSERT_TRUE(s);
  EXPECT_EQ(encode(*s), encode(a_status()));
  EXPECT_EQ(s->device, "NVIDIA H200");
  EXPECT_EQ(s->tags[1].store, checkpoint::backing_store::file);
  EXPECT_FALSE(s->tags[0].store);
  EXPECT_EQ(s->job.elapsed.count(), 1234);

  const auto r = decode<snapshot_request>(encode(snapshot_request{
      {"a", "b"}, "/x.smi", "/y.smi", image::codec::zstd, true, false, "/key", "/signing", true}));
  ASSERT_TRUE(r);
  EXPECT_EQ(r->tags, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r->path, "/x.smi");
  EXPECT_EQ(r->parent, "/y.smi");
  EXPECT_EQ(r->compress, image::codec::zstd);
  EXPECT_TRUE(r->replace);
  EXPECT_FALSE(r->verify);
  EXPECT_EQ(r->key, "/key");
  EXPECT_EQ(r->sign_with, "/signing");
  EXPECT_TRUE(r->force);
  EXPECT_FALSE(r->all);

  const auto g =
      decode<handoff_request>(encode(handoff_request{{"a"}, "@x", std::chrono::milliseconds(77)}));
  ASSERT_TRUE(g);
  EXPECT_EQ(g->to, "@x");
  EXPECT_EQ(g->timeout.count(), 77);

  image::written w;
  w.image.bytes[3] = std::byte{3};
  w.stored_bytes = 1;
  w.compressed_chunks = 2;
  w.direct_io = true;
  const auto written = decode<image::written>(encode(w));
  ASSERT_TRUE(written);
  EXPECT_EQ(written->image, w.image);
  EXPECT_EQ(written->compressed_chunks, 2u);

  const auto given =
      decode<handoff::sent_memory>(encode(handoff::sent_memory{1, 2, 3, 4, false, {5, 6, 7}}));
  ASSERT_TRUE(given);
  EXPECT_EQ(given->bytes, 4u);
  EXPECT_FALSE(given->unmapped);
  EXPECT_EQ(given->to.pid, 5);
}

// Some tags or all of them: never neither, never both.
TEST(messages, a_request_names_tags_or_asks_for_all) {
  const auto decoded = [](auto request, bool named, bool all) {
    request.all = all;
    if constexpr (requires { request.tags; }) {
      if (named) request.tags = {"a"};
    } else {
      if (named) request.tag = "a";
    }
    return decode<decltype(request)>(encode(request));
  };
  const auto expect_one = [&](const auto &request) {
    for (const bool named : {false, true}) {
      for (const bool all : {false, true}) {
        const auto r = decoded(request, named, all);
        EXPECT_EQ(r.has_value(), named != all) << named << all;
        if (r) {
          EXPECT_EQ(r->all, all);
        }
      }
    }
  };
  expect_one(suspend_request{});
  expect_one(resume_request{});
  snapshot_request saves;
  saves.path = "/x";
  expect_one(saves);
  restore_request restores;
  restores.path = "/x";
  expect_one(restores);
  handoff_request gives;
  gives.to = "@x";
  expect_one(gives);
  migrate_request moves = a_migration();
  moves.tags.clear();
  expect_one(moves);
}

TEST(messages, failures_keep_their_code_and_their_text) {
  for (const std::error_code code :
       {make_error_code(errc::busy), make_error_code(errc::operation_canceled),
        std::error_code(2, cuda_category()), std::error_code(ENOSPC, std::system_category()),
        std::make_error_code(std::errc::operation_canceled)}) {
    const error sent{code, "op", "why", 1, 2, error_unit::pages};
    const error e = decode_refusal(encode(sent.about("a.smi")));
    EXPECT_EQ(e.code, code);
    EXPECT_EQ(e.value, 1u);
    EXPECT_EQ(e.limit, 2u);
    EXPECT_EQ(e.unit, error_unit::pages);
    EXPECT_EQ(e.detail().cause, sent.about("a.smi").message());
  }
  EXPECT_TRUE(
      decode_refusal(encode(error{std::error_code(2, cuda_category())})).is(errc::out_of_memory));
  EXPECT_TRUE(decode_refusal(encode(make_system_error(ENOENT, "why").value())).code ==
              std::errc::no_such_file_or_directory);
  const error busy = make_error(errc::busy, "why").value();
  EXPECT_EQ(decode_refusal(encode(busy.about(std::string(1 << 20, 'x')))).detail().cause.size(),
            4096u);
  EXPECT_EQ(decode_refusal(encode(busy.about("a\x1b\nb"))).detail().cause.find("a??b"), 0u);
  // Regression: U+0080 to U+009F are control characters of a terminal too. Other letters stay.
  EXPECT_EQ(decode_refusal(encode(busy.about("a\xc2\x9b\xc2\x80"
                                             "b\xc3\x9f")))
                .detail()
                .cause.find("a??b\xc3\x9f"),
            0u);
  // A refusal without an error is an error all the same.
  EXPECT_TRUE(decode_refusal({}).is(errc::corrupt));
  EXPECT_TRUE(decode_refusal(encode(error{})).is(errc::corrupt));
}

TEST(messages, a_status_is_never_larger_than_an_answer_may_be) {
  process_status s = a_status();
  s.tags.assign(3 * max_status_tags, {std::string(4096, 't'), 1, 2, 3, 4, {}});
  const bytes much = encode(s);
  EXPECT_LE(much.size(), max_response_bytes);
  const auto read = decode<process_status>(much);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->tags.size() + read->omitted_tags, 3 * max_status_tags);
  EXPECT_EQ(read->omitted_mapped_bytes, 3 * read->omitted_tags);
  EXPECT_EQ(read->omitted_suspended_bytes, 4 * read->omitted_tags);
  EXPECT_GT(read->tags.size(), 0u);
}

TEST(messages, a_process_without_memory_has_a_status) {
  process_status s = a_status();
  s.tags.clear();
  s.omitted_tags = 0;
  const auto read = decode<process_status>(encode(s));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(read->tags.empty());
  EXPECT_EQ(read->omitted_tags, 0u);
}

template <class T>
void hold_against(const bytes &good, result<T> (*read)(bytes_view)) {
  ASSERT_TRUE(read(good));
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(read(bytes_view(good).first(n))) << n << " of " << good.size();
  }
  bytes more = good;
  more.push_back({});
  EXPECT_FALSE(read(more));
  std::mt19937 dice(5);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    // Another message, or none: read within its bounds either way.
    [[maybe_unused]] const auto one = read(bad);
    for (std::byte &b : bad) {
      if (dice() % 4 == 0) b = static_cast<std::byte>(dice());
    }
    [[maybe_unused]] const auto other = read(bad);
  }
}

TEST(messages, what_is_cut_off_or_garbled_is_not_believed) {
  hold_against(encode(a_status()), decode<process_status>);
  hold_against(encode(suspend_request{"t", checkpoint::backing_store::file, "/tmp"}),
               decode<suspend_request>);
  hold_against(encode(resume_request{"t"}), decode<resume_request>);
  hold_against(encode(snapshot_request{{"a"}, "/x", "/y"}), decode<snapshot_request>);
  hold_against(encode(restore_request{{"a"}, "/x", "/k"}), decode<restore_request>);
  hold_against(encode(snapshot::restored_contents{{}, 1, 2}), decode<snapshot::restored_contents>);
  hold_against(encode(handoff_request{{"a", "b"}, "/x"}), decode<handoff_request>);
  hold_against(encode(checkpoint::suspended_tag{}), decode<checkpoint::suspended_tag>);
  hold_against(encode(image::written{}), decode<image::written>);
  hold_against(encode(handoff::sent_memory{}), decode<handoff::sent_memory>);
  hold_against(encode(snapshot_progress{true, 1, 2, 3}), decode<snapshot_progress>);
  hold_against(encode(a_migration()), decode<migrate_request>);
  hold_against(encode(migration::progress{}), decode<migration::progress>);
  hold_against(encode(an_outcome(migration::owner::in_doubt)), decode<migration::sent_memory>);
  hold_against(encode(request_kind::migrate), decode<request_kind>);
}

TEST(messages, what_makes_no_sense_is_refused) {
  using checkpoint::backing_store;
  EXPECT_FALSE(decode<suspend_request>(encode(suspend_request{"", backing_store::discard, ""})));
  EXPECT_FALSE(decode<suspend_request>(encode(suspend_request{"t", backing_store::file, "tmp"})));
  EXPECT_FALSE(
      decode<suspend_request>(encode(suspend_request{"t", static_cast<backing_store>(3), ""})));
  EXPECT_FALSE(decode<suspend_request>(encode(suspend_request{std::string(5000, 't'), {}, ""})));
  EXPECT_FALSE(decode<resume_request>(encode(resume_request{""})));
  EXPECT_FALSE(decode<snapshot_request>(encode(snapshot_request{{}, "/x", ""})));
  snapshot_request relative{{"a"}, "/x", ""};
  relative.key = "key";
  EXPECT_FALSE(decode<snapshot_request>(encode(relative)));
  relative = {{"a"}, "/x", ""};
  relative.sign_with = "key";
  EXPECT_FALSE(decode<snapshot_request>(encode(relative)));
  EXPECT_FALSE(decode<snapshot_request>(encode(snapshot_request{{"a", ""}, "/x", ""})));
  EXPECT_FALSE(decode<snapshot_request>(encode(snapshot_request{{"a"}, "x", ""})));
  EXPECT_FALSE(
      decode<snapshot_request>(encode(snapshot_request{{"a"}, std::string("/x\0y", 4), ""})));
  EXPECT_FALSE(decode<snapshot_request>(encode(snapshot_request{{"a"}, "/x", "y"})));
  EXPECT_FALSE(decode<restore_request>(encode(restore_request{{}, "/x", ""})));
  EXPECT_FALSE(decode<restore_request>(encode(restore_request{{"a", ""}, "/x", ""})));
  EXPECT_FALSE(decode<restore_request>(encode(restore_request{{"a"}, "x", ""})));
  EXPECT_FALSE(decode<restore_request>(encode(restore_request{{"a"}, "", ""})));
  EXPECT_FALSE(decode<restore_request>(encode(restore_request{{"a"}, "/x", "key"})));
  EXPECT_FALSE(decode<handoff_request>(encode(handoff_request{{"a"}, ""})));
  EXPECT_FALSE(decode<handoff_request>(encode(handoff_request{{}, "/x"})));
  const auto refused = [](auto change) {
    migrate_request r = a_migration();
    change(r);
    return !decode<migrate_request>(encode(r));
  };
  EXPECT_TRUE(refused([](auto &r) { r.tags.clear(); }));
  EXPECT_TRUE(refused([](auto &r) { r.to.clear(); }));
  EXPECT_TRUE(refused([](auto &r) { r.certificate.clear(); }));
  EXPECT_TRUE(refused([](auto &r) { r.key = "k"; }));
  EXPECT_TRUE(refused([](auto &r) { r.authorities = "a"; }));
  EXPECT_TRUE(refused([](auto &r) { r.records = "r"; }));
  EXPECT_TRUE(refused([](auto &r) { r.fingerprints = {""}; }));
  EXPECT_TRUE(
      refused([](auto &r) { r.on_no_convergence = static_cast<migration::no_convergence>(2); }));
  EXPECT_FALSE(refused([](auto &r) { r.records.clear(), r.authorities.clear(); }));
  // Without the destination as owner there is a failure, and with it there is none.
  migration::sent_memory m = an_outcome(migration::owner::in_doubt);
  m.failure.reset();
  EXPECT_FALSE(decode<migration::sent_memory>(encode(m)));
  m = an_outcome(migration::owner::destination);
  m.failure = make_error(errc::busy, "why").value();
  EXPECT_FALSE(decode<migration::sent_memory>(encode(m)));
}

}  // namespace
}  // namespace stillmap::control
