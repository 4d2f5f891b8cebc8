#include <algorithm>
#include <list>
#include <map>
#include <thread>

#include "stillmap/checkpoint/migration/internal/session.h"
#include "stillmap/checkpoint/migration/migration.h"

namespace stillmap::migration {
namespace {

constexpr const char *op = "migration::receiver";
// Connections at once: a task's, and those who ask.
constexpr std::size_t most_connections = most_channels + 32;

}  // namespace

class receiver::core {
 public:
  core(const device &d, std::unique_ptr<acceptor> at, receive_options how)
      : device_(d), acceptor_(std::move(at)), how_(std::move(how)) {}

  void start() {
    accepting_ = std::thread([this] { accept_all(); });
  }

  ~core() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      if (current_) current_->end();
      for (connection &c : connections_) {
        if (c.with) c.with->cut();
      }
    }
    acceptor_->cut();
    if (accepting_.joinable()) accepting_.join();
    for (connection &c : connections_) c.thread.join();
  }

  std::string where() const { return acceptor_->where(); }

  result<arrived_memory> receive(patience wait, const std::stop_token &cancel) {
    std::shared_ptr<session> next;
    {
      std::unique_lock lock(mutex_);
      const std::stop_callback waking(cancel, [this] { changed_.notify_all(); });
      const auto there = [&] { return !arrived_.empty() || cancel.stop_requested(); };
      if (!changed_.wait_for(lock, wait, there) || arrived_.empty()) {
        return make_error(errc::busy, op,
                      cancel.stop_requested() ? "cancelled" : "no task has come here");
      }
      next = arrived_.front();
      arrived_.pop_front();
    }
    auto out = next->deliver();
    const std::lock_guard lock(mutex_);
    if (!out) arrived_.push_front(next);
    return out;
  }

  std::optional<error> last_failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  struct connection {
    std::unique_ptr<channel> with;
    std::thread thread;
    bool over = false;
  };

  void accept_all() {
    for (;;) {
      auto c = acceptor_->accept(patience(200));
      std::list<connection> ended;
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        for (auto i = connections_.begin(); i != connections_.end();) {
          const auto next = std::next(i);
          if (i->over) ended.splice(ended.end(), connections_, i);
          i = next;
        }
        if (current_) {
          current_->end_if_silent();
          if (!current_->alive() && !talking_) current_.reset();
        }
      }
      for (connection &e : ended) e.thread.join();
      if (!c) {
        if (!c.error().is(errc::busy)) {  // no descriptor, for one: later, perhaps
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        continue;
      }
      serve(std::move(*c));
    }
  }

  void serve(std::unique_ptr<channel> with) {
    const std::lock_guard lock(mutex_);
    if (connections_.size() >= most_connections) return;  // and closes it
    connection &c = connections_.emplace_back();
    c.with = std::move(with);
    try {
      c.thread = std::thread([this, &c] {
        answer(*c.with);
        const std::lock_guard ending(mutex_);
        c.with.reset();
        c.over = true;
      });
    } catch (const std::system_error &) {
      connections_.pop_back();
    }
  }

  void answer(channel &with) {
    if (status s = with.open(how_.wait); !s) return;
    if (how_.allow && !how_.allow(with.who())) {
      return refuse_to(with, make_error(errc::not_supported, op, "not from them").value());
    }
    const auto first = migration::receive(with, 4096, how_.wait);
    if (!first) return;
    switch (first->head.what) {
      case kind::hello:
        return begin(with, first->body);
      case kind::join:
        return join(with, first->body);
      case kind::ask:
        return tell(with, first->body);
      default:
        return refuse_to(
            with, make_error(errc::corrupt, op, "nothing begins with this message").value());
    }
  }

  void refuse_to(channel &with, const error &why) const {
    (void)send(with, kind::refusal, checkpoint::encode(why), how_.wait);
  }

  void begin(channel &with, std::span<const std::byte> body) {
    const auto h = decode_hello(body);
    if (!h) return refuse_to(with, h.error());
    std::shared_ptr<session> mine;
    {
      const std::lock_guard lock(mutex_);
      // Who begins again has kept it: what waits for the word of before waits in vain.
      if (current_ && !talking_ && current_->is_of(h->task, with.who())) current_->end();
      if (stopping_ || talking_ || (current_ && current_->alive())) {
        return refuse_to(with,
                         make_error(errc::busy, op, "another task is on its way here").value());
      }
      current_.reset();
      if (how_.most_tasks != 0 && owned_.size() >= how_.most_tasks) {
        return refuse_to(with, make_error(errc::busy, op, "no further task is taken here",
                                      owned_.size(), how_.most_tasks)
                                   .value());
      }
      auto made = session::create(device_, how_, *h, with.who());
      if (!made) {
        failure_ = made.error();
        return refuse_to(with, made.error());
      }
      failure_.reset();
      mine = current_ = std::move(*made);
      talking_ = true;
    }
    const status s = mine->talk(with);
    const std::lock_guard lock(mutex_);
    talking_ = false;
    if (!s) failure_ = s.error();
    hand_on(mine);
    if (!mine->alive() && current_ == mine) current_.reset();
  }

  void join(channel &with, std::span<const std::byte> body) {
    const auto id = decode_session(body);
    std::shared_ptr<session> of;
    {
      const std::lock_guard lock(mutex_);
      if (id && current_ && current_->id() == *id) of = current_;
    }
    if (!of) {
      return refuse_to(with, make_error(errc::corrupt, op, "there is no such session").value());
    }
    const status s = of->carry(with);
    if (s || !of->alive()) return;
    const std::lock_guard lock(mutex_);
    failure_ = s.error();
  }

  // What became of a session; where it waits for the word, this may be it.
  void tell(channel &with, std::span<const std::byte> body) {
    const auto q = decode_question(body);
    if (!q) return refuse_to(with, q.error());
    std::shared_ptr<session> of;
    auto now = standing::never;
    {
      const std::lock_guard lock(mutex_);
      if (current_ && current_->id() == q->session) of = current_;
      if (!of && std::find(owned_.begin(), owned_.end(), q->session) != owned_.end()) {
        now = standing::owns;
      } else if (!of) {
        const auto told = by_record(*q);
        if (!told) return refuse_to(with, told.error());
        now = *told;
      }
    }
    if (of) now = of->answer();
    if (!send(with, kind::answer, {}, how_.wait, static_cast<std::uint64_t>(now))) return;
    if (now != standing::waiting) return;
    const auto word = migration::receive(with, kind::commit, 4096, how_.wait, op);
    if (!word) return;
    const auto again = decode_question(word->body);
    if (!again) return refuse_to(with, again.error());
    if (status s = of->commit(*again); !s) return refuse_to(with, s.error());
    {
      const std::lock_guard lock(mutex_);
      hand_on(of);
    }
    (void)send(with, kind::owner, {}, how_.wait);
  }

  // Requires the mutex: nobody begins meanwhile.
  result<standing> by_record(const question &q) const {
    auto file = record_file::open(how_.records, q.task);
    if (!file) return tl::unexpected(file.error());
    const auto before = file->read();
    if (!before) return tl::unexpected(before.error());
    if (!*before || (*before)->session != q.session) return standing::never;
    record r = **before;
    if (r.state == ownership::refused) return standing::never;
    if (r.state != ownership::owner) return standing::owns;  // or has been the owner since
    // Whoever had it is gone before the task could run: it never came.
    r.state = ownership::refused;
    if (status s = file->write(r); !s) return tl::unexpected(s.error());
    return standing::never;
  }

  // Requires the mutex. To who waits in receive(), once.
  void hand_on(const std::shared_ptr<session> &s) {
    if (!s->owned() || std::find(owned_.begin(), owned_.end(), s->id()) != owned_.end()) return;
    owned_.push_back(s->id());
    arrived_.push_back(s);
    if (current_ == s) current_.reset();
    failure_.reset();
    changed_.notify_all();
  }

  const device device_;
  const std::unique_ptr<acceptor> acceptor_;
  const receive_options how_;
  std::thread accepting_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool talking_ = false;  // to current_'s source
  std::list<connection> connections_;
  std::shared_ptr<session> current_;
  std::list<std::shared_ptr<session>> arrived_;
  std::vector<session_id> owned_;  // since this process began
  std::optional<error> failure_;
};

result<receiver> receiver::start(const device &d, std::unique_ptr<acceptor> at,
                                 receive_options how) {
  if (how.records.empty()) {
    return make_error(errc::invalid_argument, op, "no folder for the record of ownership");
  }
  auto c = std::make_unique<core>(d, std::move(at), std::move(how));
  try {
    c->start();
  } catch (const std::system_error &e) {
    return tl::unexpected(error{e.code(), op, "no thread to be had"});
  }
  return receiver(std::move(c));
}

receiver::receiver(std::unique_ptr<core> c) : core_(std::move(c)) {}
receiver::receiver(receiver &&) noexcept = default;
receiver::~receiver() = default;
std::string receiver::where() const {
  return core_->where();
}
result<arrived_memory> receiver::receive(patience wait, std::stop_token cancel) {
  return core_->receive(wait, cancel);
}
std::optional<error> receiver::last_failure() const {
  return core_->last_failure();
}

}  // namespace stillmap::migration
