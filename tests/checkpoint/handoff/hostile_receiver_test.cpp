// A sender, and a receiver that lies: in every field, kind and order of its messages, about its process,
// and with the ownership word. The sender gives up its memory to a receiver that took ownership after an
// offer, and to no other.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "tests/checkpoint/handoff/small_task.h"
#include "tests/support/held.h"

namespace stillmap::handoff::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::held;

class hostile_receiver : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  }
  void TearDown() override {
    memory_.reset();
    buffer_test::TearDown();
  }

  // What the receiver does. Its messages are in the socket before send() begins.
  struct behaviour {
    std::vector<frame> says;
    std::chrono::milliseconds timeout = 10s;
    bool ends = true;  // says nothing more after that; false: stays silent
    // Called after each step of the sender, with the word once it came.
    std::function<void(step, ownership_word &)> acts = {};
    std::size_t bytes = SIZE_MAX;  // of what it says
    // In a thread of its own, until the sender is done.
    std::function<void(int socket, const std::atomic<bool> &over)> also = {};
  };
  // Commits as it should.
  static void commits(step s, ownership_word &word) {
    if (s == step::offer_sent) {
      EXPECT_TRUE(word.commit());
    }
  }
  std::vector<frame> good(std::vector<int> pidfd = {}) const {
    return {small::hello_frame(dev(), role::receiver),
            small::empty_frame(kind::ready, "ready", std::move(pidfd)),
            small::empty_frame(kind::committed, "committed")};
  }

  // One handoff to this receiver. Success exactly if `gets` the memory.
  void hand_off(const behaviour &b, bool gets) {
    if (!memory_) memory_.emplace(small::map(dev(), small::layout(page())));
    const held before = held::now(driver());
    result<sent_memory> sent = tl::unexpected<error>(error{});
    {
      int ends[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      connection mine = small::must(connection::adopt(owned_fd(ends[0])));
      connection theirs = small::must(connection::adopt(owned_fd(ends[1])));
      write_frames(theirs.fd(), b.says, b.bytes);
      if (b.ends) end_writing(theirs.fd());
      std::optional<ownership_word> word;
      handoff_options options;
      options.timeout = b.timeout;
      options.on_step = [&](step s) {
        if (!b.acts) return;
        if (s == step::layout_sent) word.emplace(receive_word(theirs));
        if (word) b.acts(s, *word);
      };
      std::thread other;
      std::atomic<bool> over{false};
      if (b.also) other = std::thread([&] { b.also(theirs.fd(), over); });
      const auto begun = std::chrono::steady_clock::now();
      sent = send(dev(), mine, tags_, options);
      took_ = std::chrono::steady_clock::now() - begun;
      over = true;
      if (other.joinable()) other.join();
    }
    ASSERT_EQ(sent.has_value(), gets) << (sent ? "sent" : sent.error().message());
    if (sent) {
      EXPECT_TRUE(sent->unmapped);
      EXPECT_EQ(dev().space().stats().mapped_bytes, 0u);
      memory_.reset();
      return;
    }
    EXPECT_NE(sent.error().reason[0], '\0');
    EXPECT_EQ(small::wrong(dev()), "");
    EXPECT_EQ(before.more_now(driver()), "");
  }
  // And then an honest one.
  void hand_off_again() {
    behaviour honest{good()};
    honest.acts = commits;
    hand_off(honest, true);
  }

  static ownership_word receive_word(connection &from) {
    for (;;) {
      message m = small::must(from.receive(checkpoint::largest_layout, 10s, {}));
      if (m.kind != static_cast<std::uint16_t>(kind::layout)) continue;
      return small::must(ownership_word::open(std::move(m.fds.at(0))));
    }
  }
  // Writes what no honest receiver does.
  static void overwrite(const ownership_word &word, std::uint32_t value) {
    void *const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, word.fd(), 0);
    ASSERT_NE(at, MAP_FAILED);
    std::atomic_ref(*static_cast<std::uint32_t *>(at)).store(value);
    ::munmap(at, 4096);
  }

  std::vector<std::string> tags_ = small::tags;
  std::chrono::steady_clock::duration took_{};  // the last send()

 private:
  std::optional<checkpoint::restored_memory> memory_;
};

TEST_F(hostile_receiver, the_script_is_what_a_receiver_says) {
  EXPECT_EQ(small::hello_frame(dev(), role::receiver).body(),
            encode(hello{role::receiver, dev().uuid(), page()}));
  hand_off_again();
  hand_off({good()}, false);  // it reports a commit that it did not make
}

// Before the offer a receiver cannot own the memory, whatever is in the word.
// Regression: the sender unmapped its memory, with work still queued on it, for a receiver that wrote
// `receiver` or nonsense into the word at any step, and then closed the connection.
TEST_F(hostile_receiver, the_word_gives_it_memory_only_after_the_offer) {
  int cases = 0;
  for (const step at :
       {step::layout_sent, step::pages_sent, step::ready_received, step::idle, step::offer_sent}) {
    for (const std::uint32_t value : {0U, 1U, 2U, 3U, 4U, 5U, 0x80000000U, ~0U}) {
      // With its messages complete, and cut off after that step at the latest.
      for (const std::size_t messages : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
        SCOPED_TRACE(std::string(name_of(at)) + ", word " + std::to_string(value) + ", " +
                     std::to_string(messages) + " messages");
        if (at > step::pages_sent && messages == 1) continue;  // that step is not reached
        behaviour b{good()};
        b.says.erase(b.says.begin() + static_cast<std::ptrdiff_t>(messages), b.says.end());
        b.acts = [&](step s, ownership_word &word) {
          if (s == at) overwrite(word, value);
        };
        hand_off(
            b, at == step::offer_sent && value == static_cast<std::uint32_t>(ownership::receiver));
        ++cases;
      }
    }
  }
  hand_off_again();
  std::printf("note: hostile receiver, the ownership word: %d cases\n", cases);
}

// Regression: each byte began the timeout anew, so a peer kept the sender for as long as it liked.
TEST_F(hostile_receiver, one_byte_at_a_time_is_bounded_by_the_timeout) {
  behaviour slow{{}, 100ms, false};
  slow.also = [&](int socket, const std::atomic<bool> &over) {
    for (const frame &f : good()) {
      for (const std::byte &b : f.bytes()) {
        if (over) return;
        write_with(socket, {&b, 1}, {});
        std::this_thread::sleep_for(30ms);
      }
    }
  };
  hand_off(slow, false);
  EXPECT_LT(took_, 1s);
  hand_off_again();
}

// Regression: they are no bytes of a message, and began the timeout anew all the same: for ever.
TEST_F(hostile_receiver, urgent_bytes_are_bounded_by_the_timeout) {
  behaviour urgent{{}, 100ms, false};
  urgent.also = [](int socket, const std::atomic<bool> &over) {
    for (int i = 0; i < 100 && !over; ++i) {
      if (::send(socket, "!", 1, MSG_OOB | MSG_NOSIGNAL) != 1) return;  // before Linux 5.15
      std::this_thread::sleep_for(20ms);
    }
  };
  hand_off(urgent, false);
  EXPECT_LT(took_, 1s);
  hand_off_again();
}

// Regression: the sender waited for it as long as it read something now and then.
TEST_F(hostile_receiver, reading_slowly_is_bounded_by_the_timeout) {
  tags_.push_back(std::string(4000, 'x'));  // more than a socket holds
  std::vector<reservation> blocks;
  reservation_options options;
  options.tag = tags_.back();
  for (int i = 0; i < 700; ++i)
    blocks.push_back(small::must(reservation::create(dev(), page(), options)));
  behaviour slow{{good()[0]}, 200ms, false};
  slow.also = [](int socket, const std::atomic<bool> &over) {
    std::vector<char> some(32 << 10);
    while (!over && ::recv(socket, some.data(), some.size(), MSG_DONTWAIT) != 0) {
      std::this_thread::sleep_for(20ms);
    }
  };
  hand_off(slow, false);
  EXPECT_LT(took_, 800ms);
}

}  // namespace
}  // namespace stillmap::handoff::testing
