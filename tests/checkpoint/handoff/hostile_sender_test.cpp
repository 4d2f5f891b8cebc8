// A receiver, and a sender that lies: in every field, kind and order of its messages, with descriptors
// that are no pages or other ones, and with the ownership word. The receiver gets memory as it was
// described, or has nothing.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "stillmap/vmm/context.h"
#include "tests/checkpoint/handoff/small_task.h"
#include "tests/support/held.h"

namespace stillmap::handoff::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::held;

class hostile_sender : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
    // The sender's own memory, in this process at other addresses.
    std::vector<page_ptr> pages;
    memory_.emplace(small::map(
        dev(), small::layout(page(), small::other_at, small::other_at + 8 * page()), &pages));
    for (const page_ptr &p : pages) exported_.push_back(export_page(p));
    word_.emplace(small::must(ownership_word::create()));
    shared_word_ = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, word_->fd(), 0);
    ASSERT_NE(shared_word_, MAP_FAILED);
    start_ = dev().space().stats();
  }
  void TearDown() override {
    if (shared_word_ != nullptr) ::munmap(shared_word_, 4096);
    exported_.clear();
    memory_.reset();
    buffer_test::TearDown();
  }

  owned_fd export_page(const page_ptr &p) const {
    const context_guard guard(driver(), dev().context());
    return owned_fd(small::must(driver().export_fd(p->handle())));
  }
  std::vector<int> page_fds() const { return {exported_[0].get(), exported_[1].get()}; }
  std::vector<frame> good() const {
    return {small::hello_frame(dev(), role::sender),
            small::layout_frame(with_reference(), word_->fd()),
            small::empty_frame(kind::pages, "pages", page_fds()),
            small::empty_frame(kind::offer, "offer")};
  }

  // The sender has attached memory, too.
  checkpoint::memory_layout with_reference() const {
    checkpoint::memory_layout l = small::layout(page());
    const device_address end = l.blocks.back().range.end();
    l.published = {{{end + 64 * page(), 8 * page()}, "model", "llama", {}, 1}};
    return l;
  }

  // What the sender does. Its messages are in the socket before receive() begins.
  struct behaviour {
    std::vector<frame> says;
    std::chrono::milliseconds timeout = 10s;
    bool ends = true;  // its stream ends after that; false: it stays open, and silent
    std::uint32_t word = static_cast<std::uint32_t>(ownership::offered);
    std::optional<step> closes_at = {};           // closes its end after this step of the receiver
    std::size_t bytes = SIZE_MAX;                 // of what it says
    std::function<void(int socket)> writes = {};  // instead of what it says
    // In a thread of its own, until the receiver is done.
    std::function<void(int socket, const std::atomic<bool> &over)> also = {};
  };

  // One handoff from this sender. The receiver has the memory exactly if it has committed. Returns
  // whether it did; what it received is destroyed. `usual`: it must be the memory of the script.
  bool take(const behaviour &b, bool usual = false) {
    const held before = held::now(driver());
    std::atomic_ref(*static_cast<std::uint32_t *>(shared_word_)).store(b.word);
    bool got = false;
    {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        throw std::runtime_error("socketpair");
      }
      connection mine = small::must(connection::adopt(owned_fd(ends[0])));
      std::optional<owned_fd> theirs(ends[1]);
      b.writes ? b.writes(theirs->get()) : write_frames(theirs->get(), b.says, b.bytes);
      if (b.ends) end_writing(theirs->get());
      handoff_options options;
      options.timeout = b.timeout;
      options.on_step = [&](step s) {
        if (b.closes_at == s) theirs.reset();
      };
      std::atomic<bool> over{false};
      std::thread other;
      if (b.also) other = std::thread([&, to = theirs->get()] { b.also(to, over); });
      auto received = receive(dev(), mine, options);
      over = true;
      if (other.joinable()) other.join();
      got = received.has_value();
      EXPECT_EQ(got, word_->load() == ownership::receiver && b.word != 2);
      if (got) {
        EXPECT_TRUE(is_all_there(*received));
        if (usual) {
          EXPECT_EQ(small::wrong(dev()), "");
        }
      } else {
        EXPECT_TRUE(received.error().code);
      }
    }
    EXPECT_EQ(before.more_now(driver()), "");
    const address_space_stats now = dev().space().stats();
    EXPECT_EQ(now.mapped_bytes, start_.mapped_bytes);
    EXPECT_EQ(now.live_blocks, start_.live_blocks);
    EXPECT_EQ(now.physical.bytes(), start_.physical.bytes());
    return got;
  }
  // And then from one that behaves.
  bool take_twice(const behaviour &b) {
    const bool got = take(b);
    EXPECT_TRUE(take({good()}, true)) << "afterwards";
    ++cases_;
    return got;
  }
  void note_cases(const char *what) const {
    std::printf("note: hostile sender, %s: %d cases\n", what, cases_);
  }

  // Whether every place that the device may read is as large as it was said to be.
  bool is_all_there(const checkpoint::restored_memory &m) const {
    const memory_location here = on_device(checkpoint::memory_layout::own_device);
    return std::ranges::all_of(m.layout().places, [&](const auto &p) {
      const auto &grants = m.layout().access[p.access];
      const std::size_t bytes = m.layout().pages[p.page].bytes;
      return std::ranges::none_of(grants,
                                  [&](const access_grant &g) {
                                    return g.location == here && g.mode != access_mode::none;
                                  }) ||
             stillmap::testing::get(dev(), p.at + (bytes - 8), 8).size() == 8;
    });
  }

  std::optional<checkpoint::restored_memory> memory_;
  std::vector<owned_fd> exported_;
  std::optional<ownership_word> word_;
  void *shared_word_ = nullptr;
  address_space_stats start_;
  int cases_ = 0;
};

TEST_F(hostile_sender, the_script_is_what_a_sender_says) {
  EXPECT_EQ(small::hello_frame(dev(), role::sender).body(),
            encode(hello{role::sender, dev().uuid(), page()}));
  const auto l = with_reference();
  EXPECT_EQ(small::layout_frame(l, word_->fd()).body(), encode(l));
  EXPECT_TRUE(take({good()}, true));
  // Pages one by one are the same.
  std::vector<frame> two = good();
  two.insert(two.begin() + 2, two[2]);
  two[2].with({page_fds()[0]});
  two[3].with({page_fds()[1]});
  EXPECT_TRUE(take({two}, true));
}

TEST_F(hostile_sender, a_lie_in_any_field_is_refused_or_another_memory) {
  // Another value of these can be another memory, which is then received as it is described.
  const std::set<std::string> other_memory{
      "layout: block address",  "layout: block bytes",       "layout: block tag",
      "layout: grant mode",     "layout: place address",     "layout: place access",
      "layout: place page",     "layout: reference address", "layout: reference bytes",
      "layout: reference tag",  "layout: reference name",    "layout: reference id",
      "layout: reference block"};
  std::set<std::string> accepted;
  const std::vector<frame> honest = good();
  for (std::size_t i = 0; i < honest.size(); ++i) {
    for (const frame::lie &l : honest[i].lies()) {
      SCOPED_TRACE(l.field + " = " + l.value);
      behaviour b{honest};
      b.says[i] = l.message;
      if (!take_twice(b)) continue;
      // The offer says nothing that the word does not.
      if (honest[i].name() != "offer") accepted.insert(l.field);
    }
  }
  EXPECT_EQ(accepted, other_memory);
  note_cases("fields");
}

TEST_F(hostile_sender, messages_out_of_order_are_refused) {
  for (const disorder &d : disorders(good())) {
    SCOPED_TRACE(d.what);
    const char *const needed[] = {"hello", "layout", "pages"};
    const bool complete =
        std::equal(std::begin(needed), std::end(needed), d.messages.begin(),
                   d.messages.begin() + std::min<std::ptrdiff_t>(3, std::ssize(d.messages)),
                   [](const char *name, const frame &f) { return f.name() == name; });
    EXPECT_EQ(take_twice({d.messages}), complete);
  }
  note_cases("order");
}

TEST_F(hostile_sender, only_an_offer_in_the_word_gives_memory) {
  for (const std::uint32_t value : {0U, 1U, 2U, 3U, 4U, 5U, 0x80000000U, ~0U}) {
    for (const std::ptrdiff_t messages : {1, 2, 3, 4}) {
      SCOPED_TRACE(std::to_string(value) + ", messages " + std::to_string(messages));
      behaviour b{good()};
      b.says.erase(b.says.begin() + messages, b.says.end());
      b.word = value;
      // Without the message `offer`, too: the message may be lost.
      EXPECT_EQ(take_twice(b),
                value == static_cast<std::uint32_t>(ownership::offered) && messages >= 3);
    }
  }
  note_cases("the ownership word");
}

TEST_F(hostile_sender, a_stream_that_ends_or_stops_anywhere_leaves_nothing) {
  const std::vector<frame> honest = good();
  std::size_t all = 0, pages = 0;
  for (const frame &f : honest) {
    // Descriptors come with the first byte, but count with the last of the header.
    all += f.bytes().size();
    if (f.name() == "pages") pages = all;
  }
  for (std::size_t n = 0; n < all; ++n) {
    SCOPED_TRACE(n);
    behaviour b{honest};
    b.bytes = n;
    EXPECT_EQ(take_twice(b), n >= pages);
    if (n % 16 != 0) continue;
    b.timeout = 20ms;  // it stays connected, and says nothing more
    b.ends = false;
    const bool got = take_twice(b);
    EXPECT_TRUE(n >= pages || !got);
  }
  for (int s = static_cast<int>(step::layout_received); s <= static_cast<int>(step::committed);
       ++s) {
    for (const ownership word : {ownership::sender, ownership::offered}) {
      SCOPED_TRACE(std::string("closed at ") + name_of(static_cast<step>(s)));
      behaviour b{honest};
      b.closes_at = static_cast<step>(s);
      b.word = static_cast<std::uint32_t>(word);
      // What it needs is in the socket; only `ready` cannot be sent any more.
      EXPECT_EQ(take_twice(b),
                word == ownership::offered && static_cast<step>(s) >= step::ready_sent);
    }
  }
  note_cases("cut off, silent and closed");
}

TEST_F(hostile_sender, descriptors_that_are_no_such_pages_are_refused) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::vector<owned_fd> all;
  all.emplace_back(ends[0]);
  all.emplace_back(ends[1]);
  all.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  all.emplace_back(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  all.emplace_back(::eventfd(0, EFD_CLOEXEC));
  // Memory files: too small, large enough and not sealed, sealed against writing, read-only, sealed
  // as a word and of another size.
  const auto file = [&](off_t bytes, int seals) {
    all.emplace_back(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const int fd = all.back().get();
    EXPECT_EQ(::ftruncate(fd, bytes), 0);
    if (seals != 0) {
      EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
    }
  };
  constexpr int shrink = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  file(0, shrink);
  file(4095, shrink);
  file(4097, shrink);
  file(4096, 0);
  file(4096, F_SEAL_GROW | F_SEAL_SEAL);
  file(4096, shrink | F_SEAL_WRITE);
  file(4096, shrink | 0x0010);  // F_SEAL_FUTURE_WRITE
  file(static_cast<off_t>(page()), 0);
  all.emplace_back(
      ::open(("/proc/self/fd/" + std::to_string(word_->fd())).c_str(), O_RDONLY | O_CLOEXEC));
  for (const owned_fd &fd : all) {
    SCOPED_TRACE(fd.get());
    ASSERT_GE(fd.get(), 0);
    const auto with = [&](std::size_t message, std::vector<int> fds) {
      behaviour b{good()};
      b.says[message].with(std::move(fds));
      EXPECT_FALSE(take_twice(b));
    };
    with(1, {fd.get()});                 // no ownership word
    with(2, {fd.get(), page_fds()[1]});  // no first page
    with(2, {page_fds()[0], fd.get()});  // no second page
    for (const std::size_t n : {1, 2, 128, 129, 253}) {
      for (const std::size_t message : {0, 1, 2}) {
        if (message == 1 && n == 1) continue;
        std::vector<int> many(n, fd.get());
        // More than belong there, those first.
        if (message == 1) many[0] = word_->fd();
        if (message == 2 && n > 2) std::copy_n(page_fds().begin(), 2, many.begin());
        with(message, many);
      }
    }
    behaviour b{good()};  // with the body of the layout, and a later byte of the header
    for (const std::size_t at : {1, 16, 40}) {
      b.writes = [&](int socket) {
        const std::vector<frame> says = good();
        write_frames(socket, std::span(says).first(1));
        write_with(socket, std::span(says[1].bytes()).first(at), says[1].fds());
        const int one = fd.get();
        write_with(socket, std::span(says[1].bytes()).subspan(at), {&one, 1});
        write_frames(socket, std::span(says).subspan(2));
      };
      EXPECT_FALSE(take_twice(b));
    }
  }
  note_cases("descriptors");
}

TEST_F(hostile_sender, pages_of_another_kind_are_refused) {
  const auto first_is = [&](int fd) {
    behaviour b{good()};
    b.says[2].with({fd, page_fds()[1]});
    return take_twice(b);
  };
  EXPECT_FALSE(first_is(page_fds()[1])) << "twice the size";
  behaviour small_one{good()};
  small_one.says[2].with({page_fds()[0], page_fds()[0]});
  EXPECT_FALSE(take_twice(small_one)) << "half the size";
  EXPECT_FALSE(first_is(word_->fd()));
  behaviour page_as_word{good()};
  page_as_word.says[1].with({page_fds()[0]});
  EXPECT_FALSE(take_twice(page_as_word));
  // Pages of another device, and of the host.
  const auto other_kind = [&](const device &d, std::optional<memory_location> where) {
    page_pool_options options;
    options.location = where;
    options.exportable = handle_type::posix_fd;
    options.keep_free = 0;
    const auto pool = page_pool::create(d, options);
    std::vector<page_ptr> one;
    if (!pool || !(*pool)->acquire(1, one)) return;  // this machine has none
    const owned_fd fd = export_page(one[0]);
    start_ = dev().space().stats();
    EXPECT_FALSE(first_is(fd.get()));
  };
  if (small::must(driver().device_count()) > 1) {
    const device second = open_device(1);
    other_kind(second, std::nullopt);
  }
  other_kind(dev(), on_host_numa(0));
  start_ = dev().space().stats();
  EXPECT_TRUE(take({good()}, true));
}

// Regression: 4 bytes of a layout were 24 of memory, so 256 MiB made more than 1.5 GiB.
TEST_F(hostile_sender, access_lists_that_no_place_can_use_are_refused) {
  checkpoint::memory_layout l = small::layout(page());
  l.access.resize(l.places.size());
  behaviour b{good()};
  b.says[1] = small::layout_frame(l, word_->fd());
  EXPECT_TRUE(take_twice(b)) << "each place could have its own";
  l.access.emplace_back();
  b.says[1] = small::layout_frame(l, word_->fd());
  EXPECT_FALSE(take_twice(b));
}

// Regression: each byte began the timeout anew, here for hours.
TEST_F(hostile_sender, one_byte_at_a_time_is_bounded_by_the_timeout) {
  behaviour slow{{good()[0]}, 100ms, false};
  slow.also = [&](int socket, const std::atomic<bool> &over) {
    const frame layout = good()[1].with_body(std::vector<std::byte>(1 << 20));
    for (std::size_t i = 0; !over; ++i) {
      write_with(socket, std::span(layout.bytes()).subspan(i, 1),
                 i == 0 ? layout.fds() : std::vector<int>{});
      std::this_thread::sleep_for(30ms);
    }
  };
  EXPECT_FALSE(take_twice(slow));
}

}  // namespace
}  // namespace stillmap::handoff::testing
