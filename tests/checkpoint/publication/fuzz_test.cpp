// Random changes of good messages, for STILLMAP_MODEL_SECONDS: what is accepted is what encodes to the same bytes, and
// a manifest that is accepted can be restored. Then whole streams to a holder, and from one to a reader.
#include <sys/socket.h>

#include <random>

#include "stillmap/checkpoint/base/socket_listener.h"
#include "tests/checkpoint/publication/frames.h"
#include "tests/support/fuzz.h"
#include "tests/support/held.h"
#include "tests/support/op_sequence.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::changed_by_dice;
using stillmap::testing::fuzz_input;
using stillmap::testing::fuzz_input_of;
using stillmap::testing::held;
using bytes_view = std::span<const std::byte>;

template <class T>
std::string check_encoding(const result<T> &decoded, bytes_view from,
                           const std::function<std::vector<std::byte>(const T &)> &encoded) {
  if (!decoded) {
    const bool good = decoded.error().is(errc::corrupt) || decoded.error().is(errc::not_supported);
    return good && decoded.error().reason[0] != '\0' ? "" : "refused without a reason";
  }
  const auto again = encoded(*decoded);
  return std::equal(again.begin(), again.end(), from.begin(), from.end()) ? ""
                                                                          : "changed when encoded";
}

// What a reader relies on, checked independently.
std::string check_manifest(const manifest &m) {
  if (!check_name(m.name)) return "a wrong name";
  std::uint64_t chunks = 0;
  for (const auto &p : m.layout.pages) {
    if (p.bytes == 0 || p.bytes % m.page_bytes != 0) return "a wrong page";
    if (!m.digests.empty()) {
      // Divided first: no sum of sizes overflows.
      chunks += p.bytes / m.chunk_bytes + (p.bytes % m.chunk_bytes != 0 ? 1 : 0);
    }
  }
  if (chunks != m.digests.size()) return "another number of digests than chunks";
  for (const auto &p : m.layout.places) {
    std::size_t inside = 0;
    for (const auto &b : m.layout.blocks) {
      inside += b.range.contains(virtual_range{p.at, m.layout.pages.at(p.page).bytes}) ? 1 : 0;
    }
    if (inside != 1) return "a place that is not in one block";
  }
  return "";
}

enum mode : std::uint8_t {
  in_attach,
  in_withdraw,
  in_generation,
  in_listing,
  in_publish,
  in_attached
};

std::string run_decoder(const fuzz_input &input) {
  const auto body = std::as_bytes(std::span(input)).subspan(1);
  switch (static_cast<mode>(input[0])) {
    case in_attach:
      return check_encoding<attach_request>(decode<attach_request>(body), body,
                                            [](const auto &m) { return encode(m); });
    case in_withdraw:
      return check_encoding<withdraw_request>(decode<withdraw_request>(body), body,
                                              [](const auto &m) { return encode(m); });
    case in_generation:
      return check_encoding<generation_reply>(decode<generation_reply>(body), body,
                                              [](const auto &m) { return encode(m); });
    case in_listing:
      return check_encoding<listing>(decode<listing>(body), body,
                                     [](const auto &m) { return encode(m); });
    case in_publish: {
      const auto encoded = manifest_of_publish(body);
      if (!encoded) return "";
      const auto m = decode_manifest(*encoded);
      if (!m) return m.error().reason[0] != '\0' ? "" : "refused without a reason";
      if (const auto wrong = check_manifest(*m); !wrong.empty()) return wrong;
      return encode_publish(*m) == std::vector(body.begin(), body.end()) ? "" : "changed";
    }
    default: {
      const auto m = decode_attached(body);
      if (!m) return m.error().reason[0] != '\0' ? "" : "refused without a reason";
      if (const auto wrong = check_manifest(m->manifest); !wrong.empty()) return wrong;
      return m->generation != 0 ? "" : "generation 0";
    }
  }
}

class publication_fuzz : public publication_fixture {
 protected:
  void SetUp() override {
    publication_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    memory_.emplace(make_small(dev()));
  }
  void TearDown() override {
    memory_.reset();
    publication_fixture::TearDown();
  }
  std::vector<fuzz_input> corpus() const {
    manifest no_digests = memory_->manifest;
    no_digests.digests.clear();
    const listing all{{"m", 3, true, dev().uuid(), {}, 4, 5, 6, {7, 8}}, {}};
    const attach_request r{"model", 3, dev().uuid(), page(), 5ms, true};
    return {fuzz_input_of(in_attach, encode(r)),
            fuzz_input_of(in_withdraw, encode(withdraw_request{"model"})),
            fuzz_input_of(in_generation, encode(generation_reply{3})),
            fuzz_input_of(in_listing, encode(all)),
            fuzz_input_of(in_publish, encode_publish(memory_->manifest)),
            fuzz_input_of(in_publish, encode_publish(no_digests)),
            fuzz_input_of(in_attached, encode_attached(3, encode(memory_->manifest)))};
  }
  // Calls run(random) again and again.
  static void for_a_while(unsigned seed_of_test, std::uint64_t least,
                          const std::function<void(std::mt19937_64 &)> &run) {
    const auto until = std::chrono::steady_clock::now() +
                       std::chrono::duration<double>(stillmap::testing::seconds_of_run(0.4));
    const std::uint64_t seed = stillmap::testing::seed_of_run(seed_of_test);
    std::mt19937_64 random(seed);
    for (std::uint64_t n = 0; n < least || std::chrono::steady_clock::now() < until; ++n) {
      SCOPED_TRACE("input " + std::to_string(n) + ", STILLMAP_SEED=" + std::to_string(seed));
      run(random);
      if (HasFailure()) return;
    }
  }
  static std::vector<std::byte> stream_of(std::span<const frame> all) {
    std::vector<std::byte> out;
    for (const frame &f : all) out.insert(out.end(), f.bytes().begin(), f.bytes().end());
    return out;
  }
  // The header of a message stays whole more often than not, or nothing would get behind it.
  static std::vector<std::byte> changed(const std::vector<std::byte> &good,
                                        std::mt19937_64 &random) {
    const fuzz_input out =
        changed_by_dice(fuzz_input_of(0, good), random, [&](std::size_t size) -> std::size_t {
          if (size <= 18 || random() % 8 == 0) return 1 + random() % (size - 1);
          return 17 + random() % (size - 17);
        });
    const auto bytes = std::as_bytes(std::span(out)).subspan(1);
    return {bytes.begin(), bytes.end()};
  }

  std::optional<small_memory> memory_;
};

TEST_F(publication_fuzz, the_corpus_is_good_messages) {
  for (const auto &input : corpus()) EXPECT_EQ(run_decoder(input), "");
  EXPECT_TRUE(decode<listing>(std::as_bytes(std::span(corpus()[3])).subspan(1)));
  EXPECT_TRUE(decode_attached(std::as_bytes(std::span(corpus()[6])).subspan(1)));
}

TEST_F(publication_fuzz, changes_of_messages) {
  const auto all = corpus();
  for_a_while(41, 2000, [&](std::mt19937_64 &random) {
    ASSERT_EQ(run_decoder(changed_by_dice(all[random() % all.size()], random)), "");
  });
}

TEST_F(publication_fuzz, streams_to_a_holder) {
  holder_options options;
  options.timeout = 200ms;
  start(std::move(options));
  const growable_buffer honest = exportable(1, "honest", 9);
  ASSERT_DONE(publish_tag("honest", "honest"));
  const attach_request r{"honest", 0, dev().uuid(), page(), 0ms, false};
  attach_request claims = r;
  claims.name = "model";
  claims.claim = true;
  const std::vector<int> fds{memory_->fds[0].get(), memory_->fds[1].get()};
  const std::vector<std::vector<std::byte>> good{
      stream_of(std::vector<frame>{attach_frame(r)}),
      stream_of(std::vector<frame>{attach_frame(claims), publish_frame(memory_->manifest)}),
      stream_of(std::vector<frame>{publish_frame(memory_->manifest)}),
      stream_of(std::vector<frame>{list_frame()}),
      stream_of(std::vector<frame>{withdraw_frame("none")})};
  const std::vector<frame> rest{empty_frame(kind::pages, "pages", fds),
                                empty_frame(kind::commit, "commit")};
  const held before = held::now(driver());
  for_a_while(42, 100, [&](std::mt19937_64 &random) {
    const auto bytes = changed(good[random() % good.size()], random);
    {
      auto with = checkpoint::socket_channel::connect(address_, 10s);
      ASSERT_DONE(with);
      try {
        write_with(with->fd(), bytes, {});
        if (random() % 2 == 0) write_frames(with->fd(), rest);
        end_writing(with->fd());
      } catch (const std::runtime_error &) {  // it has been refused
      }
      while (with->receive(max_manifest_bytes, 10s, {})) {
      }
    }
    for (const held_publication &p : holder_->publications()) {
      // A reader of one that is withdrawn may just be leaving.
      if (p.name == "honest" || !p.newest) continue;
      (void)attach_elsewhere(p.name);
      ASSERT_TRUE(withdraw(address_, p.name));
    }
  });
  EXPECT_TRUE(eventually([&] {
    const auto all = holder_->publications();
    return all.size() == 1 && all[0].readers.empty();
  }));
  EXPECT_EQ(before.more_now(driver()), "");
  EXPECT_TRUE(attach_elsewhere("honest"));
}

TEST_F(publication_fuzz, streams_to_a_reader) {
  const std::string place = address_ + "-2";
  auto at = checkpoint::socket_listener::create(place);
  ASSERT_DONE(at);
  const std::vector<int> fds{memory_->fds[0].get(), memory_->fds[1].get()};
  const auto good = stream_of(std::vector<frame>{attached_frame(3, memory_->manifest)});
  const std::vector<frame> pages{empty_frame(kind::pages, "pages", fds)};
  const held before = held::now(driver());
  std::size_t attached = 0;
  for_a_while(43, 100, [&](std::mt19937_64 &random) {
    const auto bytes = changed(good, random);
    std::atomic<bool> over{false};
    std::thread holder([&] {
      auto with = at->accept(10s);
      if (!with) return;
      (void)with->receive(max_manifest_bytes, 10s, {});
      try {
        write_with(with->fd(), bytes, {});
        write_frames(with->fd(), pages);
      } catch (const std::runtime_error &) {  // the reader has gone
      }
      ::shutdown(with->fd(), SHUT_WR);
      while (!over) std::this_thread::sleep_for(50us);
    });
    attach_options options = elsewhere();
    options.verify = random() % 2 == 0;
    if (const auto read = attach(dev(), place, "model", options)) {
      ++attached;
      for (const auto &p : read->layout().places) {
        const std::size_t bytes_of_page = read->layout().pages[p.page].bytes;
        EXPECT_EQ(get(dev(), p.at + (bytes_of_page - 8), 8).size(), 8U);
        EXPECT_FALSE(can_write(p.at));
      }
    }
    over = true;
    holder.join();
  });
  EXPECT_GT(attached, 0U);
  EXPECT_EQ(before.more_now(driver()), "");
}

}  // namespace
}  // namespace stillmap::publication::testing
