#include "tests/checkpoint/handoff/hostile_peer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "stillmap/checkpoint/base/wire_format.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "stillmap/vmm/context.h"
#include "tests/checkpoint/handoff/frames.h"
#include "tests/checkpoint/handoff/small_task.h"

namespace stillmap::handoff {
namespace {

namespace small = testing::small;
using testing::frame;
using bytes_view = std::span<const std::byte>;

// The word through another mapping than that of its owner.
class raw_word {
 public:
  explicit raw_word(int fd)
      : at_(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {
    if (at_ == MAP_FAILED) throw std::runtime_error("mmap");
  }
  raw_word(const raw_word &) = delete;
  ~raw_word() { ::munmap(at_, 4096); }
  void store(std::uint32_t value) { atomic().store(value); }
  std::uint32_t load() { return atomic().load(); }

 private:
  std::atomic_ref<std::uint32_t> atomic() {
    return std::atomic_ref(*static_cast<std::uint32_t *>(at_));
  }
  void *at_;
};

struct word_write {
  int after_step;
  std::uint32_t value;
};

struct played {
  std::vector<word_write> writes;
};

// Writes the messages. Bytes that make no operation, or do not fit into the socket, end it.
played play(const device &d, int socket, checkpoint::wire_reader &r,
            const std::vector<std::vector<int>> &descriptors) {
  played out;
  for (int n = 0; n < 32 && r.good() && !r.done(); ++n) {
    const unsigned op = r.read<std::uint8_t>() % 4;
    if (op == 0) {
      const int after = r.read<std::uint8_t>() % (static_cast<int>(step::commit_sent) + 1);
      const std::uint32_t value = r.read<std::uint8_t>();
      out.writes.push_back({after, value == 255 ? ~0U : value});
      continue;
    }
    if (op == 3) {
      std::vector<std::byte> raw(r.read<std::uint16_t>());
      r.bytes(raw);
      if (r.good()) testing::write_with(socket, raw, {});
      continue;
    }
    const auto what = static_cast<kind>(r.read<std::uint8_t>() % 9);
    const auto fds = r.read<std::uint8_t>() % descriptors.size();
    std::vector<std::byte> body(r.read<std::uint16_t>());
    r.bytes(body);
    if (!r.good()) break;
    const auto put = [&](std::size_t at, bytes_view bytes) {
      if (at + bytes.size() > body.size()) return;
      std::copy(bytes.begin(), bytes.end(), body.begin() + static_cast<std::ptrdiff_t>(at));
    };
    if (op == 1 && what == kind::hello) {
      const std::vector<std::byte> right =
          encode(hello{role::sender, d.uuid(), d.capabilities().page_bytes});
      put(4, std::span(right).subspan(4));
    }
    const frame f = frame(static_cast<std::uint16_t>(what), "fuzzed").with_body(std::move(body));
    testing::write_frames(socket, std::vector<frame>{frame(f).with(descriptors[fds])});
  }
  return out;
}

struct ends {
  connection here;
  owned_fd there;
};
ends connected() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    throw std::runtime_error("socketpair");
  }
  return {small::must(connection::adopt(owned_fd(pair[0]))), owned_fd(pair[1])};
}

played play_all(const device &d, const owned_fd &to, checkpoint::wire_reader &r,
                const std::vector<std::vector<int>> &descriptors) {
  played out;
  try {
    out = play(d, to.get(), r, descriptors);
  } catch (const std::runtime_error &) {  // the socket is full
  }
  testing::end_writing(to.get());
  return out;
}

constexpr auto as_number = [](ownership o) { return static_cast<std::uint32_t>(o); };

hostile_outcome run_sender(const device &d, checkpoint::wire_reader &r) {
  hostile_outcome out;
  const std::size_t page = d.capabilities().page_bytes;
  std::vector<page_ptr> pages;
  const auto memory =
      small::map(d, small::layout(page, small::other_at, small::other_at + 8 * page), &pages);
  std::vector<owned_fd> fds;
  {
    const context_guard guard(d.driver(), d.context());
    for (const page_ptr &p : pages) {
      fds.emplace_back(small::must(d.driver().export_fd(p->handle())));
    }
  }
  fds.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  fds.emplace_back(::memfd_create("hostile", MFD_CLOEXEC));
  const ownership_word word = small::must(ownership_word::create());
  raw_word written(word.fd());
  const std::size_t mapped = d.space().stats().mapped_bytes;
  {
    ends between = connected();
    const auto said = play_all(d, between.there, r,
                               {{},
                                {word.fd()},
                                {fds[0].get()},
                                {fds[1].get()},
                                {fds[0].get(), fds[1].get()},
                                {fds[2].get()},
                                {fds[3].get()}});
    for (const word_write &w : said.writes) written.store(w.value);
    const bool offered = written.load() == as_number(ownership::offered);
    handoff_options options;
    options.timeout = std::chrono::milliseconds(1000);
    const auto received = receive(d, between.here, options);
    out.succeeded = received.has_value();
    if (received && (!offered || written.load() != as_number(ownership::receiver))) {
      out.wrong = "memory was received without a commit";
    }
    if (!received && offered != (written.load() == as_number(ownership::offered))) {
      out.wrong = "a receiver that has nothing has committed";
    }
  }
  if (d.space().stats().mapped_bytes != mapped || d.space().stats().live_blocks != 2) {
    out.wrong = "something is left of what was received";
  }
  return out;
}

hostile_outcome run_receiver(const device &d, checkpoint::wire_reader &r) {
  hostile_outcome out;
  const std::size_t page = d.capabilities().page_bytes;
  const auto memory = small::map(d, small::layout(page));
  const std::size_t mapped = d.space().stats().mapped_bytes;
  const owned_fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const owned_fd file(::memfd_create("hostile", MFD_CLOEXEC));
  ends between = connected();
  const auto said =
      play_all(d, between.there, r, {{}, {file.get()}, {}, {}, {}, {null.get()}, {file.get()}});
  auto theirs = small::must(connection::adopt(owned_fd(::dup(between.there.get()))));
  std::optional<raw_word> written;
  bool gets = false;
  handoff_options options;
  options.timeout = std::chrono::milliseconds(1000);
  options.on_step = [&](step s) {
    if (s == step::layout_sent) {
      for (int i = 0; i < 2 && !written; ++i) {
        const auto m = theirs.receive(checkpoint::largest_layout, options.timeout, {});
        if (m && m->fds.size() == 1) written.emplace(m->fds.front().get());
      }
    }
    for (const word_write &w : said.writes) {
      if (!written || w.after_step != static_cast<int>(s)) continue;
      written->store(w.value);
      // After that step the sender has decided.
      if (s == step::offer_sent) gets = w.value == as_number(ownership::receiver);
    }
  };
  const auto sent = send(d, between.here, small::tags, options);
  out.succeeded = sent.has_value();
  if (out.succeeded != gets) out.wrong = "the word does not decide";
  if (d.space().stats().mapped_bytes != (sent ? 0 : mapped)) out.wrong = "other pages are mapped";
  if (!sent && out.wrong.empty()) out.wrong = small::wrong(d);
  return out;
}

}  // namespace

hostile_outcome run_hostile_peer(const device &d, bytes_view bytes) {
  checkpoint::wire_reader r(bytes);
  const bool receives = r.read<std::uint8_t>() % 2 == 1;
  hostile_outcome out = receives ? run_receiver(d, r) : run_sender(d, r);
  const address_space_stats left = d.space().stats();
  if (out.wrong.empty() && (left.live_blocks != 0 || left.mapped_bytes != 0)) {
    out.wrong = "something is left of a session";
  }
  return out;
}

void peer_script::put(std::uint64_t n, int bytes) {
  for (int i = 0; i < bytes; ++i) bytes_.push_back(static_cast<std::byte>(n >> (8 * i)));
}

peer_script &peer_script::message(kind k, attached fds, const std::vector<std::byte> &body) {
  put(1, 1);
  put(static_cast<std::uint64_t>(k), 1);
  put(static_cast<std::uint64_t>(fds), 1);
  put(body.size(), 2);
  bytes_.insert(bytes_.end(), body.begin(), body.end());
  return *this;
}

peer_script &peer_script::word(int after_step, std::uint8_t value) {
  put(0, 1);
  put(static_cast<std::uint64_t>(after_step), 1);
  put(value, 1);
  return *this;
}

}  // namespace stillmap::handoff
