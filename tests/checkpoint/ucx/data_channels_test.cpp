// A migration whose data channels are UCX's, where both ends have it and it opens: the right bytes arrive; strangers,
// cut links, half messages and changed contents leave the task at its source or are sent again. The other process is
// this program again.
#include <gtest/gtest.h>

#if __has_include("stillmap/checkpoint/ucx/data_transport.h") && __has_include(<ucp/api/ucp.h>)

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/ucx/data_transport.h"
#include "tests/checkpoint/control/memory.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/sample_task.h"

namespace stillmap::migration::testing {
namespace {

using namespace std::chrono_literals;
using namespace stillmap::testing::sample;

constexpr const char *data_address =
    "data";  // where test_site keeps the address of the data acceptor

// What happens to a data channel of the source: after so many bytes it is cut, or another byte is sent.
struct data_fault {
  std::size_t cut_after = SIZE_MAX;
  int changed_chunks = 0;
};

// Of all data channels of a source.
struct data_link {
  explicit data_link(data_fault f = {}) : fault(f), chunks_to_change(f.changed_chunks) {}
  const data_fault fault;
  std::atomic<int> chunks_to_change;  // each channel has a thread
  std::atomic<std::size_t> sent{0};
  std::atomic<std::size_t> digests{0};  // in headers of chunks that were sent
};

class faulty_data final : public transport {
 public:
  faulty_data(std::unique_ptr<transport> to, data_link &of) : to_(std::move(to)), of_(of) {}
  result<std::unique_ptr<channel>> connect(std::chrono::milliseconds wait) override {
    auto c = to_->connect(wait);
    if (!c) return c;
    return std::make_unique<faulty>(of_, std::move(*c));
  }

 private:
  class faulty final : public channel {
   public:
    faulty(data_link &of, std::unique_ptr<channel> c) : of_(of), c_(std::move(c)) {}
    status handshake(std::chrono::milliseconds wait) override { return c_->handshake(wait); }
    peer_identity peer() const override { return c_->peer(); }
    bool encrypted() const noexcept override { return c_->encrypted(); }
    status send(std::span<const std::byte> b, std::chrono::milliseconds wait) override {
      std::vector<std::byte> bytes(b.begin(), b.end());
      const auto head = decode_header(b.first<header::bytes>());
      if (head && head->digest != image::digest()) ++of_.digests;
      if (head && head->what == kind::chunk && of_.chunks_to_change-- > 0) {
        bytes[4711] ^= std::byte{16};
      }
      const std::size_t sent = of_.sent += b.size();
      if (sent <= of_.fault.cut_after) return c_->send(bytes, wait);
      (void)c_->send(std::span(bytes).first(bytes.size() / 2), wait);  // half a message
      c_->shutdown();
      return make_error(errc::busy, "the link is cut");
    }
    status receive(std::span<std::byte> into, std::chrono::milliseconds wait) override {
      return c_->receive(into, wait);
    }
    void shutdown() noexcept override { c_->shutdown(); }

   private:
    data_link &of_;
    std::unique_ptr<channel> c_;
  };
  std::unique_ptr<transport> to_;
  data_link &of_;
};

class faulty_connector final : public data_connector {
 public:
  // `instead`: connects there, whatever is announced.
  faulty_connector(std::unique_ptr<data_connector> by, data_link &of, std::string instead)
      : by_(std::move(by)), of_(of), instead_(std::move(instead)) {}
  std::string transport_name() const override { return by_->transport_name(); }
  result<std::unique_ptr<transport>> create_transport(const std::string &announced) override {
    auto to = by_->create_transport(instead_.empty() ? announced : instead_);
    if (!to) return to;
    return std::make_unique<faulty_data>(std::move(*to), of_);
  }

 private:
  const std::unique_ptr<data_connector> by_;
  data_link &of_;
  const std::string instead_;
};

// Announces something else than what it is.
class lying_acceptor final : public data_acceptor {
 public:
  lying_acceptor(std::unique_ptr<data_acceptor> at, std::string name, std::string address)
      : at_(std::move(at)), name_(std::move(name)), address_(std::move(address)) {}
  result<std::unique_ptr<channel>> accept(std::chrono::milliseconds wait) override {
    return at_->accept(wait);
  }
  std::string transport_name() const override { return name_; }
  std::string address() const override { return address_; }
  void shutdown() noexcept override { at_->shutdown(); }

 private:
  const std::unique_ptr<data_acceptor> at_;
  const std::string name_, address_;
};

class migrating_over_ucx : public stillmap::testing::buffer_test,
                           public ::testing::WithParamInterface<const char *> {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (part().starts_with("destination")) destination();
  }

  // What a destination's part has behind `says`, up to the next comma.
  static std::string said_by_part(const std::string &says) {
    const std::string all = part();
    const auto at = all.find(says);
    if (at == std::string::npos) return "";
    const auto begin = at + says.size();
    return all.substr(begin, all.find(',', begin) - begin);
  }

  // Ends with what arrived, or with the failure of the last migration once its source has closed the site.
  [[noreturn]] void destination() {
    const test_site m(meeting_place());
    receive_options options = destination_options(m);
    options.read_back = part().find("not reading back") == std::string::npos;
    const bool everywhere = part().find("at all addresses") != std::string::npos;
    auto data = ucx::create_data_acceptor(everywhere ? "0.0.0.0:0" : "127.0.0.1:0", {GetParam()});
    if (!data) say_and_end(data.error().message());
    m.publish_address((*data)->address(), data_address);
    const std::string name = said_by_part("named "), address = said_by_part("announcing ");
    options.data_acceptor = std::move(*data);
    if (part().find("without UCX") != std::string::npos) options.data_acceptor = nullptr;
    if (!name.empty() || !address.empty()) {
      auto real = ucx::create_data_acceptor("127.0.0.1:0", {GetParam()});
      options.data_acceptor =
          std::make_shared<lying_acceptor>(std::move(*real), name.empty() ? "ucx" : name,
                                           address.empty() ? m.address(data_address) : address);
    }
    auto at = receiver::create(dev(), at_destination(m), options);
    if (!at) say_and_end(at.error().message());
    auto came = at->receive(60s);
    if (!came) say_and_end(came.error().message());
    std::string wrong;
    if (part().find("of a server") == std::string::npos) {
      wrong = task::wrong(dev());
    } else if (!control::testing::is_whole(dev())) {
      wrong = "the server's memory differs";
    }
    say_and_end(wrong.empty() ? "here, epoch " + std::to_string(came->epoch) : wrong);
  }
  static std::string data_address_of(const test_site &m) {
    while (m.address(data_address).empty()) std::this_thread::sleep_for(5ms);
    return m.address(data_address);
  }
  static std::unique_ptr<data_connector> connector() {
    auto made = ucx::create_data_connector({GetParam()});
    EXPECT_TRUE(made) << made.error().message();
    return std::move(*made);
  }
  static std::unique_ptr<transport> data_to(const test_site &m) {
    auto to = connector()->create_transport(data_address_of(m));
    EXPECT_TRUE(to) << to.error().message();
    return std::move(*to);
  }
  sent_memory send(const test_site &m, data_link &link, const std::string &instead = {}) {
    send_options options = source_options(m);
    options.data_connector = std::make_shared<faulty_connector>(connector(), link, instead);
    options.timeout = 10s;
    return sender(dev(), both, options).send(*to_destination(m));
  }
  sent_memory send(const test_site &m) {
    data_link sound;
    return send(m, sound);
  }
  // The task has moved, over TLS, for this reason.
  void expect_tls(const sent_memory &sent, const std::string &why) {
    EXPECT_EQ(sent.owner, owner::destination) << said(sent);
    EXPECT_EQ(sent.data_transport, "");
    ASSERT_TRUE(sent.data_fallback);
    EXPECT_NE(sent.data_fallback->message().find(why), std::string::npos)
        << sent.data_fallback->message();
  }
  static std::string said(const sent_memory &s) {
    return s.failure ? s.failure->message() : std::string("moved");
  }
  // A connection to the data acceptor that begins with `message`: what is replied.
  static std::string reply_to(transport &to, kind what, std::span<const std::byte> body) {
    auto c = to.connect(10s);
    if (!c) return c.error().message();
    if (const status s = (*c)->handshake(10s); !s) return s.error().message();
    if (const status s = migration::send(**c, what, body, 10s); !s) return s.error().message();
    const auto m = migration::receive(**c, kind::welcome, 4096, 10s);
    return m ? "welcome" : m.error().message();
  }
};
INSTANTIATE_TEST_SUITE_P(over, migrating_over_ucx, ::testing::Values("tcp", "shm"),
                         [](const auto &param) { return std::string(param.param); });

TEST_P(migrating_over_ucx, the_right_bytes_arrive) {
  for (const char *const at :
       {"destination", "destination, not reading back", "destination, at all addresses"}) {
    const test_site m;
    const task t(dev());
    other_process there(at, m.folder());
    data_link link;
    const sent_memory sent = send(m, link);
    EXPECT_EQ(sent.owner, owner::destination) << said(sent);
    EXPECT_EQ(sent.to.name, "the destination") << "the control channel is TLS";
    EXPECT_EQ(sent.data_transport, "ucx");
    EXPECT_FALSE(sent.data_fallback) << sent.data_fallback->message();
    EXPECT_GT(link.sent.load(), 1u << 20) << "contents";
    EXPECT_EQ(sent.resent_chunks, 0u);
    EXPECT_EQ(link.digests.load(), 0u) << "who reads two digests can compute the key";
    EXPECT_EQ(there.verdict(), "here, epoch 2");
  }
}

// Whoever is on the network changes contents: the seal, which comes over TLS, finds them, and they are sent
// again.
TEST_P(migrating_over_ucx, changed_contents_are_found_by_the_seal) {
  for (const char *const at : {"destination", "destination, not reading back"}) {
    const test_site m;
    const task t(dev());
    other_process there(at, m.folder());
    data_fault fault;
    fault.changed_chunks = 3;
    data_link link(fault);
    const sent_memory sent = send(m, link);
    EXPECT_EQ(sent.owner, owner::destination) << said(sent);
    EXPECT_EQ(sent.resent_chunks, 3u);
    EXPECT_EQ(there.verdict(), "here, epoch 2");
  }
}

TEST_P(migrating_over_ucx, always_changed_contents_are_refused) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  data_fault fault;
  fault.changed_chunks = 1 << 30;
  data_link link(fault);
  const sent_memory sent = send(m, link);
  EXPECT_EQ(sent.owner, owner::source) << said(sent);
  EXPECT_EQ(task::wrong(dev()), "");
}

// In the second channel's first message, and in the middle of a message of a round: the task stays, and the same
// destination takes it afterwards.
TEST_P(migrating_over_ucx, a_cut_link_leaves_the_task_at_its_source) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  for (const std::size_t after : {std::size_t{100}, std::size_t{3} << 20}) {
    data_fault fault;
    fault.cut_after = after;
    data_link link(fault);
    const auto began = std::chrono::steady_clock::now();
    const sent_memory sent = send(m, link);
    EXPECT_EQ(sent.owner, owner::source) << said(sent);
    EXPECT_TRUE(sent.failure);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 5s) << "nobody waits for a timeout";
    EXPECT_EQ(task::wrong(dev()), "");
  }
  const sent_memory sent = send(m);
  EXPECT_EQ(sent.owner, owner::destination) << said(sent);
  EXPECT_EQ(sent.data_transport, "ucx");
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

// The task's messages come over TLS only. 200 strangers that say nothing keep no source out.
TEST_P(migrating_over_ucx, strangers_get_nothing_but_an_error) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  const auto data = data_to(m);
  hello h;
  h.task.bytes.fill(std::byte{7});
  h.epoch = 1;
  h.page_bytes = page();
  h.chunk_bytes = 64 << 10;
  h.channels = 1;
  const std::string not_here = "only a data channel may begin here";
  EXPECT_NE(reply_to(*data, kind::hello, encode(h)).find(not_here), std::string::npos);
  const outcome_query q{h.task, {}, 2};
  EXPECT_NE(reply_to(*data, kind::query, encode(q)).find(not_here), std::string::npos);
  EXPECT_NE(reply_to(*data, kind::commit, encode(q)).find(not_here), std::string::npos);
  EXPECT_NE(reply_to(*data, kind::discard, {}).find(not_here), std::string::npos);
  EXPECT_NE(reply_to(*data, kind::seal, {}).find(not_here), std::string::npos);
  // Of a session that there is not, and half of one.
  session_id id;
  id.bytes.fill(std::byte{1});
  EXPECT_NE(reply_to(*data, kind::join, encode(id)).find("no session has this id"),
            std::string::npos);
  EXPECT_NE(reply_to(*data, kind::join, std::span(id.bytes).first(8)).find("no session"),
            std::string::npos);
  std::vector<std::unique_ptr<channel>> silent;
  for (int i = 0; i < 200; ++i) {
    if (auto c = data->connect(10s)) silent.push_back(std::move(*c));
  }
  EXPECT_EQ(silent.size(), 200u);
  const sent_memory sent = send(m);
  EXPECT_EQ(sent.data_transport, "ucx");
  EXPECT_EQ(sent.owner, owner::destination) << said(sent);
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

// While a session awaits its data channels, another id joins nothing.
TEST_P(migrating_over_ucx, a_guessed_session_joins_nothing) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  const auto data = data_to(m);
  send_options options = source_options(m);
  options.data_connector = connector();
  std::string reply;
  options.on_progress = [&](const progress &p) {
    if (p.step != step::prepared || !reply.empty()) return;
    session_id id;
    id.bytes.fill(std::byte{1});
    reply = reply_to(*data, kind::join, encode(id));
  };
  const sent_memory sent = sender(dev(), both, options).send(*to_destination(m));
  EXPECT_NE(reply.find("no session has this id"), std::string::npos) << reply;
  EXPECT_EQ(sent.owner, owner::destination) << said(sent);
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

// Each of these uses the control channel's transport with the same destination, and says why.
TEST_P(migrating_over_ucx, tls_is_used_where_ucx_does_not_open) {
  struct trial {
    const char *there, *why;
  };
  for (const trial &t : {trial{"destination, without UCX", "only the source has this transport"},
                         {"destination, named rdma", "another transport for data channels"},
                         {"destination, announcing 127.0.0.1:1", "127.0.0.1:1"},
                         {"destination, announcing nonsense", "nonsense"},
                         {"destination, announcing [::1:9", "[::1:9"}}) {
    SCOPED_TRACE(t.there);
    const test_site m;
    const task of(dev());
    other_process there(t.there, m.folder());
    expect_tls(send(m), t.why);
    EXPECT_EQ(there.verdict(), "here, epoch 2");
  }
}

TEST_P(migrating_over_ucx, tls_is_used_where_the_source_does_not_have_ucx) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  expect_tls(sender(dev(), both, source_options(m)).send(*to_destination(m)),
             "the source has no connector of this transport");
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

// The first data channel's first message is cut.
TEST_P(migrating_over_ucx, tls_is_used_where_the_first_channel_breaks) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  data_fault fault;
  fault.cut_after = 0;
  data_link link(fault);
  expect_tls(send(m, link), "the link is cut");
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

// Another destination's data acceptor does not know the session.
TEST_P(migrating_over_ucx, the_wrong_destination_gets_nothing) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  const test_site other;
  other_process elsewhere("destination", other.folder());
  data_link link;
  expect_tls(send(m, link, data_address_of(other)), "no session has this id");
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

// Something that accepts a connection and says nothing.
TEST_P(migrating_over_ucx, a_silent_address_costs_a_timeout) {
  const test_site m;
  const task t(dev());
  auto silent = ucx::create_data_acceptor("127.0.0.1:0", {GetParam()});
  ASSERT_TRUE(silent) << silent.error().message();
  other_process there(("destination, announcing " + (*silent)->address()).c_str(), m.folder());
  send_options options = source_options(m);
  options.data_connector = connector();
  options.timeout = 2s;
  expect_tls(sender(dev(), both, options).send(*to_destination(m)), "");
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

// A destination that is authenticated, and announces what no destination does.
TEST_P(migrating_over_ucx, a_malformed_announcement_ends_the_migration) {
  const test_site m;
  const task t(dev());
  const session_id id{{std::byte{1}}};
  const std::string nul(1, '\0');
  for (const data_endpoint &e : {data_endpoint{"ucx", std::string(max_data_address + 1, '1')},
                                 {"ucx", "127.0.0.1" + nul + ":4712"},
                                 {"ucx", "a\nb:1"},
                                 {"ucx", ""},
                                 {"", "127.0.0.1:1"},
                                 {std::string(std::size_t{1} << 20, 'u'), "127.0.0.1:1"}}) {
    const auto at = at_destination(m);
    std::jthread destination([&] {
      auto c = at->accept(30s);
      if (!c || !(*c)->handshake(30s) || !migration::receive(**c, kind::hello, 4096, 30s)) return;
      (void)migration::send(**c, kind::welcome, encode(welcome_message{id, e}), 30s);
      (void)migration::receive(**c, 4096, 30s);
    });
    const sent_memory sent = send(m);
    EXPECT_EQ(sent.owner, owner::source);
    ASSERT_TRUE(sent.failure);
    EXPECT_TRUE(sent.failure->is(errc::corrupt)) << said(sent);
    EXPECT_EQ(task::wrong(dev()), "");
  }
}

// A destination does not begin with what its sources would refuse.
TEST_P(migrating_over_ucx, an_acceptor_that_cannot_be_announced_is_refused) {
  const test_site m;
  for (const data_endpoint &e : {data_endpoint{"", "127.0.0.1:4712"},
                                 {"u cx", "127.0.0.1:4712"},
                                 {"ucx", ""},
                                 {"ucx", std::string(300, '1')}}) {
    receive_options options = destination_options(m);
    auto real = ucx::create_data_acceptor("127.0.0.1:0", {GetParam()});
    ASSERT_TRUE(real) << real.error().message();
    options.data_acceptor =
        std::make_shared<lying_acceptor>(std::move(*real), e.transport, e.address);
    const auto at = receiver::create(dev(), at_destination(m), options);
    ASSERT_FALSE(at);
    EXPECT_TRUE(at.error().is(errc::invalid_argument)) << at.error().message();
  }
}

// The task's own server sends it, by what the server was given.
TEST_P(migrating_over_ucx, a_control_server_uses_what_it_was_given) {
  enum { given, given_and_forbidden, not_given };
  for (const auto which : {given, given_and_forbidden, not_given}) {
    const test_site m;
    const auto memory = control::testing::weights_and_cache(dev());
    other_process there("destination, of a server", m.folder());
    control::server_options serving;
    serving.task.quiesce = [](auto, auto) { return status(); };
    serving.task.resume = [](auto) {};
    serving.task.released = [](auto) {};
    if (which != not_given) serving.data_connector = connector();
    const std::string where = control::testing::new_place();
    const auto server = control::server::create(dev(), where, serving);
    ASSERT_TRUE(server) << server.error().message();
    (void)to_destination(m);  // it listens
    control::migrate_request r;
    r.all = true;
    r.to = m.address();
    r.certificate = m.folder() + "/source.crt";
    r.key = m.folder() + "/source.key";
    r.fingerprints = m.of("source").fingerprints;
    r.records = m.records("source");
    r.only_tls = which == given_and_forbidden;
    const auto sent = control::client(where).migrate(r);
    ASSERT_TRUE(sent) << sent.error().message();
    EXPECT_EQ(sent->owner, owner::destination);
    EXPECT_EQ(sent->data_transport, which == given ? "ucx" : "");
    EXPECT_EQ(sent->data_fallback.has_value(), which != given);
    if (sent->data_fallback) {
      EXPECT_NE(sent->data_fallback->message().find("the source has no connector"),
                std::string::npos)
          << sent->data_fallback->message();
    }
    EXPECT_EQ(there.verdict(), "here, epoch 2");
  }
}

}  // namespace
}  // namespace stillmap::migration::testing

#endif
