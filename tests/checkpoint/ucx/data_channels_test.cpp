// A migration whose data channels are UCX's: the right bytes arrive; strangers, cut links, half messages and
// changed contents leave the task at its source or are sent again. The other process is this program again.
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

#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/ucx/data_transport.h"
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

class faulty_data final : public transport {
 public:
  faulty_data(std::unique_ptr<transport> to, data_fault f)
      : to_(std::move(to)), fault_(f), chunks_to_change_(f.changed_chunks) {}
  result<std::unique_ptr<channel>> connect(std::chrono::milliseconds wait) override {
    auto c = to_->connect(wait);
    if (!c) return c;
    return std::make_unique<faulty>(*this, std::move(*c));
  }
  // Of headers of chunks that were sent.
  std::size_t digests_sent() const { return digests_; }

 private:
  class faulty final : public channel {
   public:
    faulty(faulty_data &of, std::unique_ptr<channel> c) : of_(of), c_(std::move(c)) {}
    status handshake(std::chrono::milliseconds wait) override { return c_->handshake(wait); }
    peer_identity peer() const override { return c_->peer(); }
    bool encrypted() const noexcept override { return c_->encrypted(); }
    status send(std::span<const std::byte> b, std::chrono::milliseconds wait) override {
      std::vector<std::byte> bytes(b.begin(), b.end());
      const auto head = decode_header(b.first<header::bytes>());
      if (head && head->digest != image::digest()) ++of_.digests_;
      if (head && head->what == kind::chunk && of_.chunks_to_change_-- > 0) {
        bytes[4711] ^= std::byte{16};
      }
      const std::size_t sent = of_.sent_ += b.size();
      if (sent <= of_.fault_.cut_after) return c_->send(bytes, wait);
      (void)c_->send(std::span(bytes).first(bytes.size() / 2), wait);  // half a message
      c_->shutdown();
      return make_error(errc::busy, "the link is cut");
    }
    status receive(std::span<std::byte> into, std::chrono::milliseconds wait) override {
      return c_->receive(into, wait);
    }
    void shutdown() noexcept override { c_->shutdown(); }

   private:
    faulty_data &of_;
    std::unique_ptr<channel> c_;
  };
  std::unique_ptr<transport> to_;
  const data_fault fault_;
  std::atomic<int> chunks_to_change_;  // each channel has a thread
  std::atomic<std::size_t> sent_{0}, digests_{0};
};

class migrating_over_ucx : public stillmap::testing::buffer_test,
                           public ::testing::WithParamInterface<const char *> {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (part() == "destination") destination(true);
    if (part() == "destination, not reading back") destination(false);
  }

  // Ends with what arrived, or with the failure of the last migration once its source has closed the site.
  [[noreturn]] void destination(bool read_back) {
    const test_site m(meeting_place());
    receive_options options = destination_options(m);
    options.read_back = read_back;
    auto data = ucx::create_data_acceptor("127.0.0.1:0", {GetParam()});
    if (!data) say_and_end(data.error().message());
    m.publish_address((*data)->address(), data_address);
    options.data_acceptor = std::move(*data);
    auto at = receiver::create(dev(), at_destination(m), options);
    if (!at) say_and_end(at.error().message());
    auto came = at->receive(60s);
    if (!came) say_and_end(came.error().message());
    const std::string wrong = task::wrong(dev());
    say_and_end(wrong.empty() ? "here, epoch " + std::to_string(came->epoch) : wrong);
  }
  static std::unique_ptr<transport> data_to(const test_site &m) {
    while (m.address(data_address).empty()) std::this_thread::sleep_for(5ms);
    auto to = ucx::create_data_transport(m.address(data_address), {GetParam()});
    EXPECT_TRUE(to) << to.error().message();
    return std::move(*to);
  }
  sent_memory send(const test_site &m, transport &data, std::size_t channels = 2) {
    send_options options = source_options(m);
    options.data_transport = &data;
    options.channels = channels;
    options.timeout = 10s;
    return sender(dev(), both, options).send(*to_destination(m));
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
  for (const char *const at : {"destination", "destination, not reading back"}) {
    const test_site m;
    const task t(dev());
    other_process there(at, m.folder());
    faulty_data data(data_to(m), {});
    const sent_memory sent = send(m, data);
    EXPECT_EQ(sent.owner, owner::destination) << said(sent);
    EXPECT_EQ(sent.to.name, "the destination") << "the control channel is TLS";
    EXPECT_EQ(sent.resent_chunks, 0u);
    EXPECT_EQ(data.digests_sent(), 0u) << "who reads two digests can compute the key";
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
    faulty_data data(data_to(m), fault);
    const sent_memory sent = send(m, data);
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
  faulty_data data(data_to(m), fault);
  const sent_memory sent = send(m, data);
  EXPECT_EQ(sent.owner, owner::source) << said(sent);
  EXPECT_EQ(task::wrong(dev()), "");
}

// In the middle of a message of a round: the task stays, and the same destination takes it afterwards.
TEST_P(migrating_over_ucx, a_cut_link_leaves_the_task_at_its_source) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  for (const std::size_t after : {std::size_t{0}, std::size_t{100}, std::size_t{3} << 20}) {
    data_fault fault;
    fault.cut_after = after;
    faulty_data data(data_to(m), fault);
    const auto began = std::chrono::steady_clock::now();
    const sent_memory sent = send(m, data);
    EXPECT_EQ(sent.owner, owner::source) << said(sent);
    EXPECT_TRUE(sent.failure);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 5s) << "nobody waits for a timeout";
    EXPECT_EQ(task::wrong(dev()), "");
  }
  const sent_memory sent = send(m, *data_to(m));
  EXPECT_EQ(sent.owner, owner::destination) << said(sent);
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
  const sent_memory sent = send(m, *data);
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
  options.data_transport = data.get();
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

// Another destination's data acceptor does not know the session.
TEST_P(migrating_over_ucx, the_wrong_destination_refuses) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  const test_site other;
  other_process elsewhere("destination", other.folder());
  const auto wrong = data_to(other);
  const sent_memory sent = send(m, *wrong);
  EXPECT_EQ(sent.owner, owner::source);
  EXPECT_NE(said(sent).find("no session has this id"), std::string::npos) << said(sent);
  EXPECT_EQ(task::wrong(dev()), "");
  const sent_memory again = send(m, *data_to(m));
  EXPECT_EQ(again.owner, owner::destination) << said(again);
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

// A source without a data transport sends its data channels over TLS to the same destination.
TEST_P(migrating_over_ucx, tls_is_accepted_beside_it) {
  const test_site m;
  const task t(dev());
  other_process there("destination", m.folder());
  const sent_memory sent = sender(dev(), both, source_options(m)).send(*to_destination(m));
  EXPECT_EQ(sent.owner, owner::destination) << said(sent);
  EXPECT_EQ(there.verdict(), "here, epoch 2");
}

}  // namespace
}  // namespace stillmap::migration::testing

#endif
