// A holder, and clients that lie to it: in every field, kind and order of their messages, with descriptors of anything,
// silent, slow, or closing the connection at any point. It publishes what was committed and nothing else, keeps nothing
// of a client that has gone, and serves others beside.
#include <fcntl.h>
#include <sys/socket.h>

#include <atomic>
#include <set>
#include <thread>

#include "stillmap/checkpoint/base/error_wire.h"
#include "tests/checkpoint/publication/frames.h"
#include "tests/support/held.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;
using checkpoint::socket_channel;
using stillmap::testing::held;

class hostile_publication_client : public publication_fixture {
 protected:
  void SetUp() override {
    publication_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    memory_.emplace(make_small(dev()));
    honest_.emplace(exportable(1, "honest", 9));
    ASSERT_DONE(publish_tag("honest", "honest"));
    before_.emplace(held::now(driver()));
  }
  void TearDown() override {
    honest_.reset();
    memory_.reset();
    publication_fixture::TearDown();
  }
  void restart(std::chrono::milliseconds timeout, std::size_t max_connections = 64) {
    holder_options options;
    options.timeout = timeout;
    options.max_connections = max_connections;
    start(std::move(options));
    // A short timeout may be too short for this process, too.
    ASSERT_TRUE(eventually([&] {
      honest_.reset();
      honest_.emplace(exportable(1, "honest", 9));
      return publish_tag("honest", "honest").has_value();
    }));
    before_.emplace(held::now(driver()));
  }

  socket_channel reach() const {
    auto made = socket_channel::connect(address_, 10s);
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  std::vector<int> page_fds() const { return {memory_->fds[0].get(), memory_->fds[1].get()}; }
  std::vector<frame> good_publish() const {
    return {publish_frame(memory_->manifest), empty_frame(kind::pages, "pages", page_fds()),
            empty_frame(kind::commit, "commit")};
  }
  attach_request good_request() const { return {"honest", 0, dev().uuid(), page(), 0ms, false}; }

  // Writes the messages, and returns the kinds of the replies until the holder closes the connection. A lease is
  // closed from here.
  std::vector<kind> say(const std::vector<frame> &all, std::size_t bytes = SIZE_MAX,
                        bool ends = true) {
    std::vector<kind> out;
    socket_channel with = reach();
    try {
      write_frames(with.fd(), all, bytes);
      if (ends) end_writing(with.fd());
    } catch (const std::runtime_error &) {  // it was refused meanwhile
    }
    for (;;) {
      const auto m = with.receive(max_manifest_bytes, 10s, {});
      if (!m) {
        EXPECT_FALSE(m.error().is(errc::busy)) << "the holder is silent";
        return out;
      }
      out.push_back(static_cast<kind>(m->kind));
      if (out.back() == kind::refusal) {
        EXPECT_NE(checkpoint::decode_peer_error(m->body).detail().cause, "");
      }
    }
  }
  static bool has(const std::vector<kind> &replies, kind k) {
    return std::find(replies.begin(), replies.end(), k) != replies.end();
  }
  // Only the honest publication is there, and can be read.
  void expect_no_effect(bool often = false) {
    const auto all = holder_->publications();
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].name, "honest");
    EXPECT_TRUE(all[0].newest);
    if (++cases_ % 16 != 0 && !often) return;
    {
      auto read = attach_elsewhere("honest");
      ASSERT_DONE(read);
      EXPECT_TRUE(holds(dev(), read->tagged("honest")[0].begin, page(), 9));
    }
    EXPECT_TRUE(list(address_));
    EXPECT_TRUE(eventually([&] { return holder_->publications().at(0).readers.empty(); }));
    EXPECT_EQ(before_->more_now(driver()), "");
  }
  // Takes back what a client has published.
  void withdraw_all() {
    for (const held_publication &p : holder_->publications()) {
      if (p.newest && p.name != "honest") EXPECT_DONE(withdraw(address_, p.name));
    }
  }
  template <class T>
  static void EXPECT_DONE(const result<T> &r) {
    EXPECT_TRUE(r) << r.error().message();
  }

  std::optional<small_memory> memory_;
  std::optional<growable_buffer> honest_;
  std::optional<held> before_;
  int cases_ = 0;
};

TEST_F(hostile_publication_client, the_scripts_are_requests) {
  EXPECT_EQ(publish_frame(memory_->manifest).body(), encode_publish(memory_->manifest));
  const attach_request r{"model", 3, dev().uuid(), page(), 5ms, true};
  EXPECT_EQ(attach_frame(r).body(), encode(r));
  EXPECT_EQ(list_frame().body(), encode_version());
  EXPECT_EQ(withdraw_frame("a").body(), encode(withdraw_request{"a"}));
  EXPECT_EQ(say(good_publish()), (std::vector<kind>{kind::ready, kind::published}));
  auto read = attach_elsewhere();
  ASSERT_DONE(read);
  EXPECT_EQ(read->published().id(), memory_->manifest.id());
  withdraw_all();
  EXPECT_EQ(say({attach_frame(good_request())}), (std::vector<kind>{kind::attached, kind::pages}));
  EXPECT_EQ(say({list_frame()}), std::vector<kind>{kind::listing});
  EXPECT_EQ(say({withdraw_frame("none")}), std::vector<kind>{kind::refusal});
}

TEST_F(hostile_publication_client, a_lie_of_a_publisher_publishes_what_can_be_read_or_nothing) {
  // Another value of these is another publication.
  const std::set<std::string> other_memory{"publish: name",
                                           "publish: name length",
                                           "publish: block address",
                                           "publish: block bytes",
                                           "publish: block tag",
                                           "publish: grants",
                                           "publish: grant mode",
                                           "publish: place address",
                                           "publish: place page",
                                           "publish: place access",
                                           "publish: granularity",
                                           "publish: metadata",
                                           "publish: key",
                                           "publish: digest",
                                           "publish: chunk bytes",
                                           "publish: device",
                                           "publish: page bytes",
                                           "publish: page exportable",
                                           "publish: page rdma",
                                           "publish: grant location kind",
                                           "publish: page location kind",
                                           "publish: page location",
                                           "publish: grant location"};
  std::set<std::string> accepted;
  const std::vector<frame> honest = good_publish();
  for (std::size_t i = 0; i < honest.size(); ++i) {
    for (const frame::lie &l : honest[i].lies()) {
      SCOPED_TRACE(l.field + " = " + l.value);
      std::vector<frame> all = honest;
      all[i] = l.message;
      const auto replies = say(all);
      EXPECT_TRUE(has(replies, kind::published) || has(replies, kind::refusal));
      if (has(replies, kind::published)) {
        accepted.insert(l.field);
        // Whatever it is, it does a reader no harm.
        for (const held_publication &p : holder_->publications()) {
          if (p.name == "honest") continue;
          const auto read = attach_elsewhere(p.name);
          EXPECT_TRUE(read || !read.error().message().empty());
        }
        withdraw_all();
        EXPECT_TRUE(eventually([&] { return holder_->publications().size() == 1; }));
      }
      expect_no_effect();
    }
  }
  for (const std::string &field : accepted) EXPECT_TRUE(other_memory.contains(field)) << field;
  std::printf("note: hostile client, publishing: %d cases\n", cases_);
}

TEST_F(hostile_publication_client, a_lie_of_a_reader_is_refused) {
  std::set<std::string> served;
  for (const frame &honest : {attach_frame(good_request()), list_frame(), withdraw_frame("none")}) {
    for (const frame::lie &l : honest.lies()) {
      SCOPED_TRACE(l.field + " = " + l.value);
      const auto replies = say({l.message});
      if (has(replies, kind::attached) || has(replies, kind::listing)) served.insert(l.field);
      EXPECT_FALSE(has(replies, kind::withdrawn));
      expect_no_effect();
    }
  }
  // A generation that exists, and a wait or a claim that are not needed.
  EXPECT_EQ(served, (std::set<std::string>{"attach: claim", "attach: generation", "attach: wait"}));
  std::printf("note: hostile client, reading: %d cases\n", cases_);
}

TEST_F(hostile_publication_client, messages_out_of_order) {
  for (const auto &d : handoff::testing::disorders(good_publish())) {
    SCOPED_TRACE(d.what);
    const auto &m = d.messages;
    const bool complete = m.size() >= 3 && m[0].name() == "publish" && m[1].name() == "pages" &&
                          m[2].name() == "commit";
    EXPECT_EQ(has(say(m), kind::published), complete);
    withdraw_all();
    expect_no_effect();
  }
  for (int k = 0; k < 0x300; ++k) {
    SCOPED_TRACE(k);
    const auto replies = say({frame(static_cast<std::uint16_t>(k), "kind")});
    EXPECT_EQ(replies, std::vector<kind>{kind::refusal});
  }
  // A request behind a request.
  const auto replies = say({list_frame(), list_frame()});
  EXPECT_EQ(replies.size(), 1U);
  expect_no_effect(true);
}

TEST_F(hostile_publication_client, descriptors_of_anything) {
  int ends[2], pair[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const owned_fd pipe_end(ends[0]), other_end(ends[1]);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const owned_fd socket(pair[0]), other_socket(pair[1]);
  const owned_fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  before_.emplace(held::now(driver()));
  for (const int fd : {pipe_end.get(), null.get(), memory_->fds[0].get(), memory_->fds[1].get()}) {
    for (const std::size_t n : {0, 1, 2, 3, 128, 129, 253}) {
      SCOPED_TRACE(std::to_string(n) + " of " + std::to_string(fd));
      for (const std::size_t at : {0, 1, 2}) {
        std::vector<frame> all = good_publish();
        all[at].with(std::vector<int>(n, fd));
        const bool fits = at == 1 ? n == 2 : n == 0;
        EXPECT_EQ(has(say(all), kind::published), fits) << at;
        if (fits) {
          // The holder cannot tell; a reader can.
          const bool pages = n == 0 && at != 1;
          EXPECT_EQ(attach_elsewhere().has_value(), pages);
        }
        withdraw_all();
        EXPECT_TRUE(eventually([&] { return holder_->publications().size() == 1; }));
        expect_no_effect();
      }
      if (n == 0) continue;
      EXPECT_EQ(say({list_frame().with(std::vector<int>(n, fd))}),
                std::vector<kind>{kind::refusal});
    }
  }
  expect_no_effect(true);
}

// Regression: the holder kept the reader's end of a lease alive, which ended with neither of them.
TEST_F(hostile_publication_client, sockets_are_no_pages) {
  {
    socket_channel reader = reach();
    write_frames(reader.fd(), std::vector<frame>{attach_frame(good_request())});
    ASSERT_DONE(reader.receive(max_manifest_bytes, 10s, {}));
    EXPECT_TRUE(eventually([&] { return holder_->publications().at(0).readers.size() == 1; }));
    std::vector<frame> all = good_publish();
    all[1].with({reader.fd(), reader.fd()});
    EXPECT_FALSE(has(say(all), kind::published));
  }
  EXPECT_TRUE(eventually([&] { return holder_->publications().at(0).readers.empty(); }));
  expect_no_effect(true);
}

TEST_F(hostile_publication_client, half_a_conversation_publishes_nothing) {
  restart(150ms);
  const std::vector<frame> honest = good_publish();
  std::size_t all = 0;
  for (const frame &f : honest) all += f.bytes().size();
  for (std::size_t n = 0; n < all; n += 1 + (all - n) / 24) {
    SCOPED_TRACE(n);
    EXPECT_FALSE(has(say(honest, n), kind::published));
    expect_no_effect();
    if (n % 3 != 0) continue;
    EXPECT_FALSE(has(say(honest, n, false), kind::published)) << "silent";
    expect_no_effect();
  }
  // It goes away at once.
  for (std::size_t n = 0; n <= all; n += 1 + all / 40) {
    SCOPED_TRACE(n);
    {
      const socket_channel with = reach();
      write_frames(with.fd(), honest, n);
    }
    // All of it may have come: then it is committed, and the publisher need not know.
    if (n == all) withdraw_all();
  }
  EXPECT_TRUE(eventually([&] {
    withdraw_all();
    return holder_->publications().size() == 1;
  }));
  expect_no_effect(true);
}

TEST_F(hostile_publication_client, slow_clients_are_bounded_by_the_timeout) {
  restart(100ms, 4);
  std::atomic<bool> over{false};
  std::vector<std::jthread> slow;
  std::atomic<int> closed{0};
  for (int i = 0; i < 3; ++i) {
    slow.emplace_back([&, i] {
      const socket_channel with = reach();
      const frame f = i == 0   ? good_publish()[0]
                      : i == 1 ? attach_frame(good_request())
                               : list_frame();
      const frame longer = f.with_body(std::vector<std::byte>(4096));
      for (const std::byte &b : longer.bytes()) {
        if (::send(with.fd(), &b, 1, MSG_NOSIGNAL) != 1) break;
        if (over) return;
        std::this_thread::sleep_for(20ms);
      }
      ++closed;
    });
  }
  // One that reads nothing of a reply. Where this process is slow, the holder has closed it before.
  const socket_channel deaf = reach();
  const frame asks = attach_frame(good_request());
  (void)!::send(deaf.fd(), asks.bytes().data(), asks.bytes().size(), MSG_NOSIGNAL);
  EXPECT_TRUE(eventually([&] { return closed == 3; }));
  over = true;
  slow.clear();
  EXPECT_TRUE(eventually([&] { return list(address_).has_value(); }));
}

// A reader that takes nothing of a manifest that is larger than a socket.
TEST_F(hostile_publication_client, a_reader_that_reads_nothing_is_dropped) {
  restart(1s, 16);
  const std::vector<std::byte> much(4 << 20, std::byte{7});
  publish_options options;
  options.metadata = much;
  const growable_buffer one = exportable(1, "large", 1);
  const auto published = publish_tag("large", "large", options);
  ASSERT_DONE(published);
  const std::uint64_t generation = published->generation;
  attach_request r = good_request();
  r.name = "large";
  {
    std::vector<socket_channel> deaf;
    for (int i = 0; i < 8; ++i) {
      deaf.push_back(reach());
      write_frames(deaf.back().fd(), std::vector<frame>{attach_frame(r)});
    }
    EXPECT_TRUE(attach_elsewhere("large")) << "beside them";
    EXPECT_TRUE(eventually([&] { return readers_of(generation) == 0; })) << "after the timeout";
  }
}

TEST_F(hostile_publication_client, a_claim_is_one_publication) {
  attach_request r = good_request();
  r.name = "model";
  r.claim = true;
  const frame claims = attach_frame(r);
  std::vector<frame> all = good_publish();
  all.insert(all.begin(), claims);
  EXPECT_EQ(say(all), (std::vector<kind>{kind::claimed, kind::ready, kind::published}));
  withdraw_all();
  for (const frame &wrong : {claims, list_frame(), withdraw_frame("honest"), good_publish()[1]}) {
    EXPECT_EQ(say({claims, wrong}), (std::vector<kind>{kind::claimed, kind::refusal}));
    expect_no_effect(true);
  }
  // The claim is over each time.
  EXPECT_EQ(say({claims}), (std::vector<kind>{kind::claimed, kind::refusal}));
  attach_options options = elsewhere();
  options.wait = 10s;
  EXPECT_TRUE(attach_or_claim(dev(), address_, "model", options));
}

}  // namespace
}  // namespace stillmap::publication::testing
