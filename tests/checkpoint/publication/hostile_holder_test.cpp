// Readers, publishers and a holder that lies to them: in every field, kind and order of its messages, with descriptors
// that are no pages, silent, slow, or closing the connection at any point. A reader gets memory as it was described, or
// nothing; a publisher that did not commit has its memory as before.
#include <fcntl.h>
#include <sys/socket.h>

#include <atomic>
#include <set>
#include <thread>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/base/socket_listener.h"
#include "tests/checkpoint/publication/frames.h"
#include "tests/support/held.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::held;

class hostile_holder : public publication_fixture {
 protected:
  hostile_holder() { start_holder_ = false; }
  void SetUp() override {
    publication_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    auto made = checkpoint::socket_listener::create(address_);
    ASSERT_DONE(made);
    at_.emplace(std::move(*made));
    memory_.emplace(make_small(dev()));
  }
  void TearDown() override {
    memory_.reset();
    at_.reset();
    publication_fixture::TearDown();
  }

  // What the holder does with one connection.
  struct behaviour {
    std::vector<frame> says;
    std::chrono::milliseconds timeout = 10s;
    bool ends = true;  // its stream ends after that; false: it stays open, and silent
    std::size_t bytes = SIZE_MAX;
    std::optional<step> closes_at = {};
    std::function<void(int socket, const std::atomic<bool> &over)> also = {};
    bool reads = true;  // what the client sends
  };

  // `act` is the client. It is over when this returns.
  template <class Act>
  void meet(const behaviour &b, const Act &act) {
    std::atomic<bool> over{false}, closes{false};
    std::thread there([&] {
      auto with = at_->accept(20s);
      if (!with) return;
      // Whatever it is told, before it is answered.
      (void)with->receive(max_manifest_bytes, 10s, {});
      try {
        write_frames(with->fd(), b.says, b.bytes);
      } catch (const std::runtime_error &) {  // the client has gone
      }
      if (b.ends) ::shutdown(with->fd(), SHUT_WR);
      if (b.also) b.also(with->fd(), over);
      while (!over && !closes) {
        if (b.reads && !with->receive(max_manifest_bytes, 1ms, {}).has_value()) {
          std::this_thread::sleep_for(100us);
        }
      }
    });
    client_options options;
    options.timeout = b.timeout;
    options.on_step = [&](step s) {
      if (b.closes_at == s) closes = true;
    };
    act(options);
    over = true;
    there.join();
  }

  std::vector<frame> good_attach() const {
    return {attached_frame(7, memory_->manifest), empty_frame(kind::pages, "pages", page_fds())};
  }
  std::vector<int> page_fds() const { return {memory_->fds[0].get(), memory_->fds[1].get()}; }

  // Returns whether it attached; then the memory is as described.
  bool take(const behaviour &b, bool usual = false, bool verify = false) {
    const held before = held::now(driver());
    bool got = false;
    meet(b, [&](const client_options &options) {
      attach_options attaching;
      static_cast<client_options &>(attaching) = options;
      attaching.where = checkpoint::placement::anywhere;
      attaching.verify = verify;
      auto read = attach(dev(), address_, "model", attaching);
      got = read.has_value();
      if (!got) {
        EXPECT_FALSE(usual) << read.error().message();
        const std::string operation = read.error().operation;
        EXPECT_TRUE(operation == "publication::attach" || operation.starts_with("cu")) << operation;
        timed_out_ = read.error().is(errc::busy);
        return;
      }
      EXPECT_EQ(read->published().name, "model");
      for (const auto &p : read->layout().places) {
        const std::size_t bytes = read->layout().pages[p.page].bytes;
        EXPECT_EQ(get(dev(), p.at + (bytes - 8), 8).size(), 8U);
        EXPECT_FALSE(can_write(p.at));
      }
      if (!usual) return;
      const auto &places = read->layout().places;
      EXPECT_EQ(get(dev(), places[0].at, 64), pattern(64, 1));
      EXPECT_EQ(get(dev(), places[1].at + (2 * page() - 64), 64), pattern(64, 3));
      EXPECT_EQ(get(dev(), places[2].at, 64), pattern(64, 1));
    });
    EXPECT_EQ(before.more_now(driver()), "");
    ++cases_;
    if (cases_ % 16 == 0 && !usual) {
      EXPECT_TRUE(take({good_attach()}, true, true)) << "afterwards";
    }
    return got;
  }

  enum class publisher_state { failed, in_doubt, published };
  publisher_state publish_to(const behaviour &b) {
    publisher_state out = publisher_state::failed;
    const held before = held::now(driver());
    {
      std::optional<growable_buffer> one(exportable(1, "one", 1));
      const auto pool = dev().space().mappings({one->address(), page()})[0].backing.pool();
      meet(b, [&](const client_options &options) {
        publish_options publishing;
        static_cast<client_options &>(publishing) = options;
        const auto published = publish_tag("model", "one", publishing);
        const bool writable = can_write(one->address());
        if (published) {
          EXPECT_FALSE(writable);
          out = publisher_state::published;
          return;
        }
        EXPECT_STREQ(published.error().operation, "publication::publish");
        timed_out_ = published.error().is(errc::busy);
        if (!writable) out = publisher_state::in_doubt;
        EXPECT_EQ(published.error().message().find("did not confirm") != std::string::npos,
                  !writable)
            << published.error().message();
        EXPECT_TRUE(writable || published.error().is(errc::busy));
      });
      // Pages that others may have are not reused.
      one.reset();
      EXPECT_EQ(pool->stats().created.bytes() != 0, out == publisher_state::failed);
    }
    EXPECT_EQ(before.more_now(driver()), "");
    return out;
  }
  std::vector<frame> good_publish() const {
    return {empty_frame(kind::ready, "ready"), generation_frame(kind::published, "published", 3)};
  }

  std::optional<checkpoint::socket_listener> at_;
  std::optional<small_memory> memory_;
  int cases_ = 0;
  bool timed_out_ = false;
};

TEST_F(hostile_holder, the_script_is_what_a_holder_says) {
  EXPECT_EQ(good_attach()[0].body(), encode_attached(7, encode(memory_->manifest)));
  const listing all{{"m", 3, true, dev().uuid(), {}, 4, 5, 6, {7, 8}}, {}};
  EXPECT_EQ(listing_frame(all).body(), encode(all));
  EXPECT_EQ(good_publish()[1].body(), encode(generation_reply{3}));
  EXPECT_TRUE(take({good_attach()}, true, true));
  EXPECT_EQ(publish_to({good_publish()}), publisher_state::published);
}

TEST_F(hostile_holder, a_lie_to_a_reader_is_refused_or_another_memory) {
  // Another value of these is other memory, which the reader then has as it is described.
  const std::set<std::string> other_memory{"attached: generation",
                                           "attached: block address",
                                           "attached: block bytes",
                                           "attached: block tag",
                                           "attached: grant mode",
                                           "attached: grants",
                                           "attached: grant location kind",
                                           "attached: place address",
                                           "attached: place page",
                                           "attached: place access",
                                           "attached: granularity",
                                           "attached: metadata",
                                           "attached: key",
                                           "attached: digest",
                                           "attached: chunk bytes"};
  std::set<std::string> accepted;
  const std::vector<frame> honest = good_attach();
  for (std::size_t i = 0; i < honest.size(); ++i) {
    for (const frame::lie &l : honest[i].lies()) {
      SCOPED_TRACE(l.field + " = " + l.value);
      behaviour b{honest};
      b.says[i] = l.message;
      if (take(b)) accepted.insert(l.field);
    }
  }
  for (const std::string &field : accepted) EXPECT_TRUE(other_memory.contains(field)) << field;
  std::printf("note: hostile holder, to a reader: %d cases\n", cases_);
}

TEST_F(hostile_holder, digests_that_differ_are_refused_where_they_are_verified) {
  manifest &m = memory_->manifest;
  if (m.digests.empty()) GTEST_SKIP() << "this device computes no digests";
  const manifest good = m;
  EXPECT_TRUE(take({good_attach()}, true, true));
  m.digests.back().bytes[3] ^= std::byte{1};
  EXPECT_FALSE(take({good_attach()}, false, true));
  m = good;
  m.key.bytes[0] ^= std::byte{1};
  EXPECT_FALSE(take({good_attach()}, false, true));
  m = good;
  m.digests.clear();
  EXPECT_FALSE(take({good_attach()}, false, true));
  m = good;
  m.digests.resize(1);
  EXPECT_FALSE(take({good_attach()}, false, true));
  EXPECT_FALSE(take({good_attach()}));
  // One digest a page, of a chunk that is larger than any.
  m = good;
  m.digests.resize(2);
  for (const std::uint64_t chunk :
       {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, ~std::uint64_t{4095},
        std::uint64_t{1} << 63, std::uint64_t{4096} * 3}) {
    SCOPED_TRACE(chunk);
    m.chunk_bytes = chunk;
    EXPECT_FALSE(take({good_attach()}, false, true));
  }
}

TEST_F(hostile_holder, layouts_that_no_publisher_has) {
  const auto refused = [&](auto change) {
    const manifest good = memory_->manifest;
    memory_->manifest.digests.clear();
    change(memory_->manifest);
    const bool got = take({good_attach()});
    memory_->manifest = good;
    return !got;
  };
  EXPECT_TRUE(refused([](manifest &m) { m.layout.blocks.pop_back(); }));
  EXPECT_TRUE(refused([](manifest &m) { m.layout.blocks[1].range = m.layout.blocks[0].range; }));
  EXPECT_TRUE(refused([](manifest &m) { m.layout.blocks[0].range.bytes = std::size_t{1} << 63; }));
  EXPECT_TRUE(refused([](manifest &m) { m.layout.places[1].at = m.layout.places[0].at; }));
  EXPECT_TRUE(refused([](manifest &m) { m.layout.places.clear(); }));
  EXPECT_TRUE(refused([](manifest &m) { m.layout.pages[0].bytes = 3 * m.page_bytes; }));
  EXPECT_TRUE(refused([](manifest &m) { m.layout.pages[1].bytes = m.page_bytes; }));
  EXPECT_TRUE(refused([](manifest &m) { std::swap(m.layout.pages[0], m.layout.pages[1]); }));
  EXPECT_TRUE(refused([](manifest &m) { m.layout.access.clear(); }));
  EXPECT_TRUE(refused([](manifest &m) { m.layout.blocks[0].tag.assign(5000, 'x'); }));
  EXPECT_TRUE(refused([](manifest &m) { m.name = "other"; }));
  EXPECT_TRUE(refused([](manifest &m) { m.name.clear(); }));
  EXPECT_TRUE(refused([](manifest &m) { m.device[0] ^= 1; }));
  EXPECT_TRUE(refused([](manifest &m) { m.page_bytes = 0; }));
  // The same with the digests of the good one.
  memory_->manifest.chunk_bytes = 4096;
  EXPECT_FALSE(take({good_attach()}));
}

TEST_F(hostile_holder, descriptors_that_are_no_pages) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const owned_fd pipe_end(ends[0]), other_end(ends[1]);
  const owned_fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const owned_fd folder(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int small = memory_->fds[0].get(), large = memory_->fds[1].get();
  for (const int fd : {pipe_end.get(), other_end.get(), null.get(), folder.get(), small, large}) {
    for (const std::size_t n : {0, 1, 2, 3, 128, 129, 253}) {
      SCOPED_TRACE(std::to_string(n) + " of " + std::to_string(fd));
      behaviour b{good_attach()};
      b.says[1].with(std::vector<int>(n, fd));
      EXPECT_FALSE(take(b));
      b = {good_attach()};
      if (n == 0) continue;
      b.says[0].with(std::vector<int>(n, fd));
      EXPECT_FALSE(take(b));
    }
  }
  behaviour b{good_attach()};
  b.says[1].with({large, small});
  EXPECT_FALSE(take(b));
  // One by one.
  b = {good_attach()};
  b.says[1].with({small});
  b.says.push_back(empty_frame(kind::pages, "pages", {large}));
  EXPECT_FALSE(take(b));
  EXPECT_TRUE(take({good_attach()}, true, true));
}

TEST_F(hostile_holder, a_reader_waits_for_each_message_once) {
  const std::vector<frame> honest = good_attach();
  const std::size_t all = honest[0].bytes().size() + honest[1].bytes().size();
  for (std::size_t n = 0; n < all; n += 1 + all / 60) {
    SCOPED_TRACE(n);
    behaviour b{honest};
    b.bytes = n;
    EXPECT_FALSE(take(b));
    if (n % 4 != 0) continue;
    b.ends = false;
    b.timeout = 20ms;
    EXPECT_FALSE(take(b));
    EXPECT_TRUE(timed_out_);
  }
  // One byte at a time.
  behaviour slow{{}, 100ms, false};
  slow.also = [&](int socket, const std::atomic<bool> &over) {
    for (const frame &f : honest) {
      for (std::size_t i = 0; i < f.bytes().size() && !over; ++i) {
        if (::send(socket, f.bytes().data() + i, 1, MSG_NOSIGNAL) != 1) return;
        std::this_thread::sleep_for(30ms);
      }
    }
  };
  EXPECT_FALSE(take(slow));
  EXPECT_TRUE(timed_out_);
  behaviour urgent{{}, 100ms, false};
  urgent.also = [](int socket, const std::atomic<bool> &over) {
    while (!over) {
      if (::send(socket, "!", 1, MSG_OOB | MSG_NOSIGNAL) != 1) return;
      std::this_thread::sleep_for(20ms);
    }
  };
  EXPECT_FALSE(take(urgent));
}

TEST_F(hostile_holder, messages_out_of_order) {
  for (const auto &d : handoff::testing::disorders(good_attach())) {
    SCOPED_TRACE(d.what);
    const bool complete = d.messages.size() >= 2 && d.messages[0].name() == "attached" &&
                          d.messages[1].name() == "pages";
    EXPECT_EQ(take({d.messages}), complete);
  }
  for (int k = 0x200; k < 0x290; ++k) {
    SCOPED_TRACE(k);
    const frame f(static_cast<std::uint16_t>(k), "kind");
    EXPECT_FALSE(take({{f}}));
    EXPECT_FALSE(take({{f.with_body(good_attach()[0].body()), good_attach()[1]}}) &&
                 k != static_cast<int>(kind::attached));
  }
}

TEST_F(hostile_holder, a_publisher_is_never_told_what_is_not_so) {
  std::set<std::string> published;
  const std::vector<frame> honest = good_publish();
  for (std::size_t i = 0; i < honest.size(); ++i) {
    for (const frame::lie &l : honest[i].lies()) {
      SCOPED_TRACE(l.field + " = " + l.value);
      behaviour b{honest};
      b.says[i] = l.message;
      const publisher_state state = publish_to(b);
      EXPECT_EQ(state == publisher_state::failed, i == 0);
      if (state == publisher_state::published) published.insert(l.field);
    }
  }
  EXPECT_EQ(published, std::set<std::string>{"published: generation"});
  for (const auto &d : handoff::testing::disorders(honest)) {
    SCOPED_TRACE(d.what);
    const bool ready = !d.messages.empty() && d.messages[0].name() == "ready";
    const bool told = ready && d.messages.size() > 1 && d.messages[1].name() == "published";
    EXPECT_EQ(publish_to({d.messages}), told    ? publisher_state::published
                                        : ready ? publisher_state::in_doubt
                                                : publisher_state::failed);
  }
  const frame with_fd = empty_frame(kind::ready, "ready", {STDERR_FILENO});
  EXPECT_EQ(publish_to({{with_fd, honest[1]}}), publisher_state::failed);
}

TEST_F(hostile_holder, a_publisher_waits_for_each_message_once) {
  const std::vector<frame> honest = good_publish();
  const std::size_t ready = honest[0].bytes().size();
  for (std::size_t n = 0; n < ready + honest[1].bytes().size(); n += 3) {
    SCOPED_TRACE(n);
    behaviour b{honest};
    b.bytes = n;
    const publisher_state expected =
        n < ready ? publisher_state::failed : publisher_state::in_doubt;
    EXPECT_EQ(publish_to(b), expected);
    b.ends = false;
    b.timeout = 30ms;
    // On a busy machine, the holder's thread may take longer to say anything.
    if (publish_to(b) == expected && timed_out_) continue;
    b.timeout = 3s;
    EXPECT_EQ(publish_to(b), expected);
    EXPECT_TRUE(timed_out_);
  }
  for (const step at :
       {step::connected, step::sealed, step::manifest_sent, step::pages_sent, step::committed}) {
    SCOPED_TRACE(name_of(at));
    behaviour b{{}};
    b.ends = false;
    b.closes_at = at;
    if (at == step::committed) b.says = {honest[0]};
    EXPECT_EQ(publish_to(b),
              at == step::committed ? publisher_state::in_doubt : publisher_state::failed);
  }
}

// Regression: the memory stayed read-only though the holder had said that it has not published it.
TEST_F(hostile_holder, a_publisher_that_is_refused_at_the_commit_has_its_memory_as_before) {
  const error why = make_error(errc::out_of_memory, "no").value();
  const frame refusal = empty_frame(kind::refusal, "refusal").with_body(checkpoint::encode(why));
  EXPECT_EQ(publish_to({{good_publish()[0], refusal}}), publisher_state::failed);
  EXPECT_EQ(publish_to({{refusal}}), publisher_state::failed);
}

TEST_F(hostile_holder, lists_and_withdrawals) {
  const listing all{{"model", 3, true, dev().uuid(), {}, 4, 5, 6, {7, 8}},
                    {"m", 4, false, {}, {}, 1, 2, 3, {}}};
  const frame good = listing_frame(all);
  const auto listed = [&](const behaviour &b) {
    bool got = false;
    meet(b, [&](const client_options &options) {
      const auto told = list(address_, options);
      got = told.has_value();
      EXPECT_TRUE(got || told.error().operation == std::string("publication::list"));
      EXPECT_TRUE(!got || told->size() <= 2);
    });
    return got;
  };
  EXPECT_TRUE(listed({{good}}));
  std::set<std::string> wrong;
  for (const frame::lie &l : good.lies()) {
    if (listed({{l.message}})) wrong.insert(l.field);
  }
  for (const char *const header :
       {"magic", "version", "kind", "bytes", "descriptors", "cut off", "too long"}) {
    EXPECT_FALSE(wrong.contains(std::string("listing: ") + header)) << header;
  }
  behaviour silent{{}};
  silent.ends = false;
  silent.timeout = 20ms;
  EXPECT_FALSE(listed(silent));
  const frame withdrawn = generation_frame(kind::withdrawn, "withdrawn", 3);
  const auto withdrew = [&](const behaviour &b) {
    bool got = false;
    meet(b, [&](const client_options &options) {
      got = withdraw(address_, "model", options).has_value();
    });
    return got;
  };
  EXPECT_TRUE(withdrew({{withdrawn}}));
  for (const frame::lie &l : withdrawn.lies()) {
    SCOPED_TRACE(l.field + " = " + l.value);
    EXPECT_EQ(withdrew({{l.message}}), l.field == "withdrawn: generation" && l.value != "0");
  }
  EXPECT_FALSE(withdrew(silent));
}

}  // namespace
}  // namespace stillmap::publication::testing
