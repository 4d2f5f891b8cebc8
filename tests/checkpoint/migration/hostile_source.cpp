#include "tests/checkpoint/migration/hostile_source.h"

#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>

#include "stillmap/checkpoint/base/wire_format.h"
#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {
namespace {

using bytes_view = std::span<const std::byte>;
constexpr std::size_t channels = 4;
constexpr std::uint32_t hostile_chunk_bytes = 64 << 10;

// State shared by both ends of one channel.
struct connection {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::byte> to_receiver;
  std::vector<std::byte> from_receiver;
  bool starves = false;  // the receiver waits for more bytes
  bool cut = false, gone = false;
};

class memory_channel final : public channel {
 public:
  explicit memory_channel(std::shared_ptr<connection> p) : connection_(std::move(p)) {}
  ~memory_channel() override {
    const std::lock_guard lock(connection_->mutex);
    connection_->gone = true;
    connection_->changed.notify_all();
  }
  status handshake(std::chrono::milliseconds) override { return {}; }
  peer_identity peer() const override { return {"memory", "fuzz", "00"}; }
  status send(bytes_view bytes, std::chrono::milliseconds) override {
    const std::lock_guard lock(connection_->mutex);
    if (connection_->cut) return make_error(errc::busy, "cut");
    connection_->from_receiver.insert(connection_->from_receiver.end(), bytes.begin(), bytes.end());
    return {};
  }
  status receive(std::span<std::byte> into, std::chrono::milliseconds) override {
    std::unique_lock lock(connection_->mutex);
    while (connection_->to_receiver.size() < into.size() && !connection_->cut) {
      connection_->starves = true;
      connection_->changed.notify_all();
      connection_->changed.wait(lock);
    }
    connection_->starves = false;
    if (connection_->to_receiver.size() < into.size()) return make_error(errc::busy, "cut");
    const auto end = connection_->to_receiver.begin() + static_cast<std::ptrdiff_t>(into.size());
    std::copy(connection_->to_receiver.begin(), end, into.begin());
    connection_->to_receiver.erase(connection_->to_receiver.begin(), end);
    return {};
  }
  void shutdown() noexcept override { end(*connection_); }
  static void end(connection &p) {
    const std::lock_guard lock(p.mutex);
    p.cut = true;
    p.changed.notify_all();
  }

 private:
  const std::shared_ptr<connection> connection_;
};

struct queue_of_connections {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::unique_ptr<channel>> waiting;
  bool cut = false;
};

class memory_acceptor final : public acceptor {
 public:
  explicit memory_acceptor(std::shared_ptr<queue_of_connections> d) : queue_(std::move(d)) {}
  result<std::unique_ptr<channel>> accept(std::chrono::milliseconds wait) override {
    std::unique_lock lock(queue_->mutex);
    queue_->changed.wait_for(lock, wait, [&] { return queue_->cut || !queue_->waiting.empty(); });
    if (queue_->waiting.empty()) return make_error(errc::busy, "no connection arrived");
    auto c = std::move(queue_->waiting.front());
    queue_->waiting.pop_front();
    return c;
  }
  std::string address() const override { return "memory"; }
  void shutdown() noexcept override {
    const std::lock_guard lock(queue_->mutex);
    queue_->cut = true;
    queue_->changed.notify_all();
  }

 private:
  const std::shared_ptr<queue_of_connections> queue_;
};

class source {
 public:
  explicit source(std::shared_ptr<queue_of_connections> d) : queue_(std::move(d)) {}
  ~source() {
    for (const auto &p : connections_) {
      if (p) memory_channel::end(*p);
    }
  }

  void send(std::size_t on, bytes_view bytes) {
    if (!connections_[on]) {
      connections_[on] = std::make_shared<connection>();
      const std::lock_guard lock(queue_->mutex);
      queue_->waiting.push_back(std::make_unique<memory_channel>(connections_[on]));
      queue_->changed.notify_all();
    }
    connection &p = *connections_[on];
    std::unique_lock lock(p.mutex);
    p.to_receiver.insert(p.to_receiver.end(), bytes.begin(), bytes.end());
    p.starves = false;
    p.changed.notify_all();
    p.changed.wait(lock, [&] { return p.starves || p.cut || p.gone; });
    if (p.gone) {
      check_replies(p);
      lock.unlock();
      connections_[on].reset();  // later bytes are of another connection
    } else {
      check_replies(p);
    }
  }
  const std::optional<session_id> &session() const { return session_; }
  const std::string &wrong() const { return wrong_; }

 private:
  // Checks that every message of the receiver is well-formed.
  void check_replies(connection &p) {
    bytes_view rest = p.from_receiver;
    while (!rest.empty() && wrong_.empty()) {
      const auto h = rest.size() >= header::bytes
                         ? decode_header(rest.first<header::bytes>())
                         : result<header>(make_error(errc::corrupt, "incomplete header"));
      if (!h || h->body > rest.size() - header::bytes) {
        wrong_ = "the receiver sent a malformed message";
        return;
      }
      const bytes_view body = rest.subspan(header::bytes, h->body);
      if (h->what == kind::welcome && !body.empty()) {
        const auto welcome = decode_welcome(body);
        if (!welcome) {
          wrong_ = "the receiver sent a malformed welcome";
          return;
        }
        session_ = welcome->session;
      }
      rest = rest.subspan(header::bytes + h->body);
    }
    p.from_receiver.clear();
  }
  const std::shared_ptr<queue_of_connections> queue_;
  std::array<std::shared_ptr<connection>, channels> connections_;
  std::optional<session_id> session_;
  std::string wrong_;
};

// Fills in the task and session ids, which only the two ends know.
void put_names(kind what, std::vector<std::byte> &body, const std::optional<session_id> &session) {
  const auto put = [&](std::size_t at, const auto &bytes) {
    if (at + bytes.size() <= body.size()) {
      std::copy(bytes.begin(), bytes.end(), body.begin() + static_cast<std::ptrdiff_t>(at));
    }
  };
  const task_id task{};
  const bool asks = what == kind::commit || what == kind::query;
  if (what == kind::hello || asks) put(0, task.bytes);
  if (session && what == kind::join) put(0, session->bytes);
  if (session && asks) put(16, session->bytes);
}

std::string play(source &from, bytes_view operations) {
  checkpoint::wire_reader r(operations);
  for (int n = 0; n < 64 && r.good() && !r.done(); ++n) {
    const auto op = static_cast<unsigned>(r.read<std::uint8_t>());
    std::vector<std::byte> all;
    if ((op >> 2) % 4 == 3) {
      std::vector<std::byte> raw(r.read<std::uint16_t>());
      r.bytes(raw);
      all = std::move(raw);
    } else {
      header h;
      h.what =
          static_cast<kind>(r.read<std::uint8_t>() % (static_cast<unsigned>(kind::refusal) + 2));
      h.number = r.read<std::uint64_t>();
      const bool zeros = r.read<std::uint8_t>() % 2 == 1;
      const std::uint64_t length = r.read<std::uint16_t>();
      std::vector<std::byte> body(length == 0xffff ? hostile_chunk_bytes : length);
      if (length != 0xffff) r.bytes(body);
      if (zeros) h.digest = image::digest_of_zeros({}, hostile_chunk_bytes).value();
      put_names(h.what, body, from.session());
      h.body = body.size();
      all.resize(header::bytes);
      encode(h, std::span(all).first<header::bytes>());
      all.insert(all.end(), body.begin(), body.end());
    }
    if (!r.good()) break;
    from.send(op % channels, all);
    if (!from.wrong().empty()) return from.wrong();
  }
  return {};
}

const std::string &records_folder() {
  static const std::string folder = [] {
    std::string name = std::filesystem::temp_directory_path() / "stillmap-fuzz-XXXXXX";
    return ::mkdtemp(name.data()) != nullptr ? name : std::string();
  }();
  return folder;
}

}  // namespace

hostile_outcome run_hostile_source(const device &d, bytes_view operations) {
  for (const auto &f : std::filesystem::directory_iterator(records_folder())) {
    std::filesystem::remove(f.path());
  }
  hostile_outcome out;
  {
    const auto in = std::make_shared<queue_of_connections>();
    receive_options options;
    options.records = records_folder();
    options.timeout = std::chrono::milliseconds(1000);
    options.max_bytes = 8 * d.capabilities().page_bytes;
    auto at = receiver::create(d, std::make_unique<memory_acceptor>(in), options);
    if (!at) return {"no receiver: " + at.error().message(), false};
    source from(in);
    out.wrong = play(from, operations);
    out.came = at->receive(std::chrono::milliseconds(0)).has_value();
  }
  const address_space_stats left = d.space().stats();
  if (out.wrong.empty() && (left.live_blocks != 0 || left.mapped_bytes != 0)) {
    out.wrong = "something is left of a session: " + std::to_string(left.mapped_bytes) + " bytes";
  }
  return out;
}

void hostile_script::put(std::uint64_t n, int bytes) {
  for (int i = 0; i < bytes; ++i) bytes_.push_back(static_cast<std::byte>(n >> (8 * i)));
}

void hostile_script::message(unsigned on, kind what, std::uint64_t number, bool zeros,
                             const std::vector<std::byte> &body) {
  put(on, 1);
  put(static_cast<std::uint64_t>(what), 1);
  put(number, 8);
  put(zeros ? 1 : 0, 1);
  put(body.size(), 2);
  bytes_.insert(bytes_.end(), body.begin(), body.end());
}

void hostile_script::chunk_of_zeros(unsigned on, std::uint64_t number) {
  message(on, kind::chunk, number, true, {});
  bytes_[bytes_.size() - 2] = bytes_[bytes_.size() - 1] = std::byte{0xff};
}

}  // namespace stillmap::migration
