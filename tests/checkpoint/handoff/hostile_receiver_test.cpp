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
    bool ends = true;      // its stream ends after that; false: it stays open, and silent
    bool commits = false;  // takes ownership once it is offered
    // Called after each step of the sender, with the word once it came.
    std::function<void(step, ownership_word &)> acts = {};
    std::optional<step> closes_at = {};           // closes its end after this step of the sender
    std::function<void(int socket)> writes = {};  // instead of what it says
    std::size_t bytes = SIZE_MAX;                 // of what it says
    // In a thread of its own, until the sender is done.
    std::function<void(int socket, const std::atomic<bool> &over)> also = {};
  };
  std::vector<frame> good(std::vector<int> pidfd = {}) const {
    return {small::hello_frame(dev(), role::receiver),
            small::empty_frame(kind::ready, "ready", std::move(pidfd)),
            small::empty_frame(kind::committed, "committed")};
  }

  // One handoff to this receiver. It gets the memory exactly if it has taken ownership after an offer;
  // otherwise the sender has it as before.
  void hand_off(const behaviour &b) {
    if (!memory_) memory_.emplace(small::map(dev(), small::layout(page())));
    const held before = held::now(driver());
    result<sent_memory> sent = tl::unexpected<error>(error{});
    gets_ = false;
    {
      int ends[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      connection mine = small::must(connection::adopt(owned_fd(ends[0])));
      std::optional<connection> theirs(small::must(connection::adopt(owned_fd(ends[1]))));
      b.writes ? b.writes(theirs->fd()) : write_frames(theirs->fd(), b.says, b.bytes);
      if (b.ends) end_writing(theirs->fd());
      std::optional<ownership_word> word;
      handoff_options options;
      options.timeout = b.timeout;
      options.on_step = [&](step s) {
        reached_ = s;
        if (theirs && s == step::layout_sent && !b.also) word.emplace(receive_word(*theirs));
        if (b.acts && word) b.acts(s, *word);
        if (b.commits && s == step::offer_sent) gets_ = word->commit();
        if (b.closes_at == s) theirs.reset();
      };
      std::atomic<bool> over{false};
      std::thread other;
      if (b.also) other = std::thread([&, to = theirs->fd()] { b.also(to, over); });
      sent = send(dev(), mine, tags_, options);
      over = true;
      if (other.joinable()) other.join();
    }
    ASSERT_EQ(sent.has_value(), gets_) << (sent ? "sent" : sent.error().message());
    if (sent) {
      EXPECT_TRUE(sent->unmapped);
      EXPECT_EQ(dev().space().stats().mapped_bytes, 0u);
      memory_.reset();
      return;
    }
    EXPECT_NE(sent.error().reason[0], '\0');
    timed_out_ = sent.error().is(errc::busy);
    EXPECT_EQ(small::wrong(dev()), "");
    EXPECT_EQ(before.more_now(driver()), "");
  }
  // And then to one that behaves.
  void hand_off_again() {
    hand_off({good(), 10s, true, true});
    EXPECT_TRUE(gets_);
  }
  // The memory of a case is that of the case before, unless a receiver got it; now and then one that
  // behaves gets it.
  void hand_off_case(const behaviour &b) {
    hand_off(b);
    if (++cases_ % 8 != 0) return;
    const bool got = gets_;
    hand_off_again();
    gets_ = got;
  }
  void note_cases(const char *what) {
    hand_off_again();
    std::printf("note: hostile receiver, %s: %d cases\n", what, cases_);
  }

  static ownership_word receive_word(connection &from) {
    for (;;) {
      checkpoint::socket_message m = small::must(from.receive(checkpoint::largest_layout, 10s, {}));
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
  // Of the last send().
  step reached_{};
  bool timed_out_ = false;
  bool gets_ = false;  // whether its receiver took ownership
  int cases_ = 0;

 private:
  std::optional<checkpoint::restored_memory> memory_;
};

TEST_F(hostile_receiver, the_script_is_what_a_receiver_says) {
  EXPECT_EQ(small::hello_frame(dev(), role::receiver).body(),
            encode(hello{role::receiver, dev().uuid(), page()}));
  hand_off_again();
  hand_off({good()});  // it reports a commit that it did not make
  EXPECT_FALSE(gets_);
}

// Regression: the sender unmapped its memory, with work still queued on it, for a receiver that wrote
// `receiver` or nonsense into the word at any step, and then closed the connection.
TEST_F(hostile_receiver, the_word_gives_it_memory_only_after_the_offer) {
  for (const step at :
       {step::layout_sent, step::pages_sent, step::ready_received, step::idle, step::offer_sent}) {
    for (const std::uint32_t value : {0U, 1U, 2U, 3U, 4U, 5U, 0x80000000U, ~0U}) {
      // With its messages complete, and cut off after that step at the latest.
      for (const std::ptrdiff_t messages : {1, 2, 3}) {
        SCOPED_TRACE(std::string(name_of(at)) + ", word " + std::to_string(value) + ", " +
                     std::to_string(messages) + " messages");
        if (at > step::pages_sent && messages == 1) continue;  // that step is not reached
        behaviour b{good()};
        b.says.erase(b.says.begin() + messages, b.says.end());
        b.acts = [&](step s, ownership_word &word) {
          if (s != at) return;
          overwrite(word, value);
          gets_ = s == step::offer_sent && value == static_cast<std::uint32_t>(ownership::receiver);
        };
        hand_off_case(b);
      }
    }
  }
  note_cases("the ownership word");
}

TEST_F(hostile_receiver, a_lie_in_any_field_is_refused) {
  const std::vector<frame> honest = good();
  for (std::size_t i = 0; i < honest.size(); ++i) {
    for (const frame::lie &l : honest[i].lies()) {
      for (const bool commits : {false, true}) {
        SCOPED_TRACE(l.field + " = " + l.value + (commits ? ", commits" : ""));
        behaviour b{honest};
        b.says[i] = l.message;
        b.commits = commits;
        hand_off_case(b);
        // The last message changes nothing: the word decides.
        EXPECT_EQ(gets_, commits && honest[i].name() == "committed");
      }
    }
  }
  note_cases("fields");
}

TEST_F(hostile_receiver, messages_out_of_order_are_refused) {
  for (const disorder &d : disorders(good())) {
    SCOPED_TRACE(d.what);
    hand_off_case({d.messages, 10s, true, true});
    const auto said = [&](std::size_t i, const char *name) {
      return i < d.messages.size() && d.messages[i].name() == name;
    };
    EXPECT_EQ(gets_, said(0, "hello") && said(1, "ready"));
  }
  note_cases("order");
}

TEST_F(hostile_receiver, a_stream_that_ends_or_stops_anywhere_leaves_one_owner) {
  const std::vector<frame> honest = good();
  const std::size_t ready = honest[0].bytes().size() + honest[1].bytes().size();
  for (std::size_t n = 0; n < ready + honest[2].bytes().size(); ++n) {
    SCOPED_TRACE(n);
    behaviour b{honest, 10s, true, true};
    b.bytes = n;
    hand_off_case(b);
    EXPECT_EQ(gets_, n >= ready);
    if (n % 8 != 0) continue;
    b.timeout = 20ms;  // it stays connected, and says nothing more
    b.ends = false;
    hand_off_case(b);
    EXPECT_TRUE(n >= ready || !gets_);
  }
  for (int s = 0; s <= static_cast<int>(step::offer_sent); ++s) {
    for (const bool commits : {false, true}) {
      SCOPED_TRACE(std::string("closed at ") + name_of(static_cast<step>(s)));
      behaviour b{honest, 10s, true, commits};
      b.closes_at = static_cast<step>(s);
      hand_off_case(b);
      EXPECT_TRUE(commits || !gets_);
    }
  }
  note_cases("cut off, silent and closed");
}

TEST_F(hostile_receiver, descriptors_say_nothing) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const owned_fd pipe_end(ends[0]), other_end(ends[1]);
  const owned_fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const owned_fd folder(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const owned_fd memory(::memfd_create("hostile", MFD_CLOEXEC));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  const owned_fd ended(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  std::vector<int> all{pipe_end.get(), other_end.get(), null.get(), folder.get(), memory.get()};
  if (ended.get() >= 0) all.push_back(ended.get());
  for (const int fd : all) {
    // Instead of a descriptor of its process: it commits, and then its stream ends.
    SCOPED_TRACE(fd);
    behaviour b{good({fd}), 10s, true, true};
    b.says.pop_back();
    hand_off_case(b);
    EXPECT_TRUE(gets_);
    // Where none belong, or too many, and more than a message may have.
    for (std::size_t i = 0; i < 3; ++i) {
      for (const std::size_t n : {1, 2, 128, 129, 253}) {
        if (i == 1 && n == 1) continue;
        SCOPED_TRACE(std::to_string(n) + " with " + good()[i].name());
        behaviour many{good(), 10s, true, true};
        many.says[i].with(std::vector<int>(n, fd));
        hand_off_case(many);
        EXPECT_EQ(gets_, i == 2);
      }
    }
    // With a byte of the header that is not the first, and with a body.
    for (const std::size_t at : {1, 15, 16, 30}) {
      SCOPED_TRACE(at);
      behaviour late;
      late.writes = [&](int socket) {
        const std::vector<std::byte> bytes = good()[0].bytes();
        write_with(socket, std::span(bytes).first(at), {});
        write_with(socket, std::span(bytes).subspan(at), {&fd, 1});
      };
      hand_off_case(late);
      EXPECT_FALSE(gets_);
    }
  }
  ::waitpid(child, nullptr, 0);
  note_cases("descriptors");
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
  hand_off(slow);
  EXPECT_FALSE(gets_);
  EXPECT_TRUE(timed_out_) << "else all of it has come";
  hand_off_again();
}

// Regression: they are no bytes of a message, and began the timeout anew all the same: for ever.
TEST_F(hostile_receiver, urgent_bytes_are_bounded_by_the_timeout) {
  behaviour urgent{{}, 100ms, false};
  urgent.also = [](int socket, const std::atomic<bool> &over) {
    while (!over) {
      if (::send(socket, "!", 1, MSG_OOB | MSG_NOSIGNAL) != 1) return;  // before Linux 5.15
      std::this_thread::sleep_for(20ms);
    }
  };
  hand_off(urgent);
  EXPECT_FALSE(gets_);
  EXPECT_TRUE(timed_out_);
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
  hand_off(slow);
  EXPECT_FALSE(gets_);
  EXPECT_TRUE(timed_out_);
  EXPECT_EQ(reached_, step::greeted) << "it has read all of the layout";
}

}  // namespace
}  // namespace stillmap::handoff::testing
