#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <thread>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/migration/internal/connection_list.h"
#include "stillmap/checkpoint/migration/internal/session.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/vmm/base/creating_process.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

// The first message of a connection, and a commit.
constexpr std::uint64_t max_request_bytes = 4096;
// How often the state of a group is read while a member waits for it.
constexpr std::chrono::milliseconds group_interval{10};

// "192.0.2.7:4711" without the port.
std::string host_of(const std::string &address) {
  return address.substr(0, address.rfind(':'));
}

}  // namespace

// Lock order: mutex_, then those of a session, of a channel and of records.
class receiver::core {
 public:
  core(const device &d, std::unique_ptr<acceptor> at, receive_options options)
      : device_(d), acceptor_(std::move(at)), options_(std::move(options)) {}

  void start() {
    acceptor_thread_ = start_thread<std::thread>([this] { accept_all(*acceptor_, control); });
    if (!options_.data_acceptor) return;
    data_acceptor_thread_ =
        start_thread<std::thread>([this] { accept_all(*options_.data_acceptor, data_only); });
  }

  ~core() {
    {
      const lock_guard lock(mutex_);
      stopping_ = true;
      if (current_) current_->cancel();
      for (connection_list &l : connections_) l.shutdown();
      changed_.notify_all();
    }
    acceptor_->shutdown();
    if (options_.data_acceptor) options_.data_acceptor->shutdown();
    if (acceptor_thread_.joinable()) acceptor_thread_.join();
    if (data_acceptor_thread_.joinable()) data_acceptor_thread_.join();
    for (connection_list &l : connections_) l.clear();  // joins their threads
  }

  std::string address() const { return acceptor_->address(); }
  const creating_process &process() const { return process_; }

  result<received_memory> receive(std::chrono::milliseconds timeout,
                                  const std::stop_token &cancel) {
    std::list<std::shared_ptr<session>> next;
    {
      unique_lock lock(mutex_);
      const auto arrived = [this]() STILLMAP_REQUIRES(mutex_) { return !arrived_.empty(); };
      if (!changed_.wait_for(lock, cancel, timeout, arrived)) {
        if (cancel.stop_requested()) return make_error(errc::operation_canceled, "stop requested");
        return make_error(errc::busy, "no task has arrived");
      }
      next.splice(next.begin(), arrived_, arrived_.begin());
    }
    auto out = with_host_memory([&] { return next.front()->deliver(); });
    const lock_guard lock(mutex_);
    if (!out && next.front()->owned()) {
      arrived_.splice(arrived_.begin(), next);
    } else if (!out) {
      owned_.remove(next.front());
    }
    return out;
  }

  void close() {
    unique_lock lock(mutex_);
    closed_ = true;
    if (current_) current_->cancel();
    changed_.wait(lock, [this]() STILLMAP_REQUIRES(mutex_) {
      drop_current();
      return !control_open_ && !current_;
    });
  }

  std::optional<error> last_failure() const {
    const lock_guard lock(mutex_);
    return failure_;
  }

 private:
  // What a connection may be, by the acceptor that it came to. Each has a list of connections, so that
  // those to the data acceptor, whose peers are not authenticated, keep no source out.
  enum purpose : unsigned { control, data_only };

  // The thread of an acceptor. Where the host has no memory for a connection, that one is closed.
  void accept_all(acceptor &from, purpose p) noexcept {
    const operation_scope scope("migration::receiver");
    for (;;) {
      auto c = with_host_memory([&] { return from.accept(std::chrono::milliseconds(200)); });
      {
        const lock_guard lock(mutex_);
        if (stopping_) return;
        connections_[p].remove_ended();
        if (current_) current_->cancel_if_silent();
        drop_current();
      }
      if (c) {
        serve(std::move(*c), p);
      } else if (!c.error().is(errc::busy)) {
        // For example no file descriptor: one may become free.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
  }

  void serve(std::unique_ptr<channel> with, purpose p) noexcept {
    unique_lock lock(mutex_);
    // One that was dismissed needs a moment to end.
    changed_.wait(lock, [this, p]() STILLMAP_REQUIRES(mutex_) {
      return stopping_ || !connections_[p].must_wait();
    });
    if (stopping_ || connections_[p].is_full()) return;  // closes it
    std::list<accepted_connection> made;
    try {
      accepted_connection &c = made.emplace_back();
      c.host = host_of(with->peer().address);
      connections_[p].make_room_for(c.host);
      c.with = std::move(with);
      c.thread = start_thread([this, &c, p] {
        p == control ? handle(c) : handle_data(c);
        const lock_guard ending(mutex_);
        c.with.reset();
        // The last use of the connection: accept_all() may destroy it now.
        c.state = accepted_connection::over;
        changed_.notify_all();
      });
      connections_[p].add(std::move(made));
    } catch (const std::system_error &) {
    } catch (const std::bad_alloc &) {
    }
  }

  // The thread of a connection.
  void handle(accepted_connection &c) noexcept {
    const operation_scope scope("migration::receiver");
    const status s = with_host_memory([&]() -> status {
      const bool known = c.with->handshake(options_.timeout).has_value();
      {
        const lock_guard lock(mutex_);
        if (c.state != accepted_connection::handshake) return {};  // dismissed
        c.state = known ? accepted_connection::authenticated : accepted_connection::refused;
      }
      if (!known) return {};  // TLS has said why
      serve_request(*c.with);
      return {};
    });
    if (!s) refuse(*c.with, s.error());
    // What was sent last, a TLS alert too, may be a refusal.
    c.with->close_gracefully(options_.timeout);
  }

  // The thread of a connection to the data acceptor. Only the session's id, which comes over the control
  // channel, says whose it is, so until the join the connection is one of those that may be dismissed.
  void handle_data(accepted_connection &c) noexcept {
    const operation_scope scope("migration::receiver");
    const status s = with_host_memory([&]() -> status {
      STILLMAP_RETURN_IF_ERROR(c.with->handshake(options_.timeout));
      const auto first = migration::receive(*c.with, max_request_bytes, options_.timeout);
      std::shared_ptr<session> joined;
      const bool is_join = first && first->head.what == kind::join;
      if (is_join) joined = session_to_join(first->body);
      {
        const lock_guard lock(mutex_);
        if (c.state != accepted_connection::handshake) return {};  // dismissed
        c.state = joined ? accepted_connection::authenticated : accepted_connection::refused;
      }
      if (joined) {
        serve_join(*c.with, std::move(joined));
      } else if (first) {
        refuse(*c.with, errc::corrupt,
               is_join ? "no session has this id" : "only a data channel may begin here");
      }
      return {};
    });
    if (!s) refuse(*c.with, s.error());
    c.with->close_gracefully(options_.timeout);
  }

  void serve_request(channel &with) {
    if (options_.allow && !options_.allow(with.peer())) {
      return refuse(with, errc::not_supported, "tasks of this peer are not accepted");
    }
    const auto first = migration::receive(with, max_request_bytes, options_.timeout);
    if (!first) return;
    switch (first->head.what) {
      case kind::hello:
        return begin_session(with, first->body);
      case kind::join:
        return join_session(with, first->body);
      case kind::query:
        return answer_query(with, first->body);
      case kind::group:
        return answer_group(with, first->body);
      default:
        return refuse(with, errc::corrupt, "a connection cannot begin with this message");
    }
  }

  // Best effort: the connection ends in any case.
  void refuse(channel &with, const error &why) const noexcept {
    (void)with_host_memory(
        [&] { return send(with, kind::refusal, checkpoint::encode(why), options_.timeout); });
  }
  void refuse(channel &with, errc c, const char *reason, std::uint64_t value = 0,
              std::uint64_t limit = 0) const {
    refuse(with, make_error(c, reason, value, limit, error_unit::items).value());
  }

  void begin_session(channel &with, std::span<const std::byte> body) {
    const auto h = decode_hello(body);
    if (!h) return refuse(with, h.error());
    std::shared_ptr<session> mine;
    {
      unique_lock lock(mutex_);
      // A source that begins again has kept the task: its previous session will never be committed.
      if (current_ && current_->is_of(h->task, with.peer())) current_->cancel();
      // What has ended needs a moment.
      const auto is_free = [this]() STILLMAP_REQUIRES(mutex_) {
        drop_current();
        return !control_open_ && !current_;
      };
      const auto is_over = [this]() STILLMAP_REQUIRES(mutex_) { return stopping_ || closed_; };
      changed_.wait_for(lock, options_.timeout, [&]() STILLMAP_REQUIRES(mutex_) {
        return is_over() || is_free() || (current_ && current_->alive());
      });
      if (is_over() || !is_free()) {
        return refuse(with, errc::busy,
                      is_over() ? "no further task is accepted" : "another task is being received");
      }
      if (options_.max_tasks != 0 && owned_.size() >= options_.max_tasks) {
        return refuse(with, errc::busy, "no further task is accepted", owned_.size(),
                      options_.max_tasks);
      }
      auto made =
          with_host_memory([&] { return session::create(device_, *h, with.peer(), options_); });
      if (!made) {
        failure_ = made.error();
        return refuse(with, made.error());
      }
      failure_.reset();
      mine = current_ = std::move(*made);
      control_open_ = true;
    }
    const status s = mine->serve_control(with);
    const lock_guard lock(mutex_);
    control_open_ = false;
    if (!s) failure_ = s.error();
    hand_over(mine);
    leave(mine);
  }

  // A connection uses the session no more.
  void leave(std::shared_ptr<session> &s) noexcept STILLMAP_REQUIRES(mutex_) {
    s.reset();
    drop_current();
    changed_.notify_all();
  }
  // Forgets a session that has ended and that no connection uses any more: with it go its memory and
  // its lock on the record.
  void drop_current() noexcept STILLMAP_REQUIRES(mutex_) {
    if (current_ && !control_open_ && !current_->alive() && current_.use_count() == 1) {
      current_.reset();
    }
  }

  // Null: there is none with this id.
  std::shared_ptr<session> session_to_join(std::span<const std::byte> body) {
    const auto id = decode_session(body);
    const lock_guard lock(mutex_);
    return id && current_ && current_->id() == *id ? current_ : nullptr;
  }

  void join_session(channel &with, std::span<const std::byte> body) {
    std::shared_ptr<session> joined = session_to_join(body);
    if (!joined) return refuse(with, errc::corrupt, "no session has this id");
    serve_join(with, std::move(joined));
  }

  void serve_join(channel &with, std::shared_ptr<session> joined) {
    // If this fails the session, so does its control channel, which returns the failure.
    (void)with_host_memory([&] { return joined->serve_data(with); });
    const lock_guard lock(mutex_);
    leave(joined);
  }

  // Replies with the outcome of a session. If the session awaits a commit, the source may send it
  // on this connection.
  void answer_query(channel &with, std::span<const std::byte> body) {
    const auto q = decode_outcome_query(body);
    if (!q) return refuse(with, q.error());
    std::shared_ptr<session> asked = session_of(q->session);
    const auto now = with_host_memory([&] { return outcome_of(asked.get(), *q); });
    if (!now) {
      refuse(with, now.error());
    } else if (send(with, kind::query_result, {}, options_.timeout,
                    static_cast<std::uint64_t>(*now)) &&
               *now == outcome::awaiting_commit) {
      receive_commit(with, asked);
    }
    const lock_guard lock(mutex_);
    leave(asked);
  }

  // Advances the state of a group, and replies with it.
  void answer_group(channel &with, std::span<const std::byte> body) {
    const auto q = decode_group_query(body);
    if (!q) return refuse(with, q.error());
    const auto began = std::chrono::steady_clock::now();
    const auto advance = [&] {
      return advance_group(options_.records, q->group, q->to, *options_.files);
    };
    // Busy: another connection, or process, holds the file for a moment.
    const auto is_over = [&](const result<group_state> &now) {
      const bool busy = !now && now.error().is(errc::busy);
      const auto wait = busy ? max_group_wait_ms : q->wait_ms;
      return now ? *now != q->seen || waited(began, wait) : !busy || waited(began, wait);
    };
    auto now = advance();
    while (!is_over(now) && !stops_within(group_interval)) now = advance();
    if (!now) return refuse(with, now.error());
    (void)send(with, kind::group_result, {}, options_.timeout, static_cast<std::uint64_t>(*now));
  }

  static bool waited(std::chrono::steady_clock::time_point since, std::uint32_t ms) {
    return std::chrono::steady_clock::now() - since >= std::chrono::milliseconds(ms);
  }
  bool stops_within(std::chrono::milliseconds time) STILLMAP_EXCLUDES(mutex_) {
    unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this]() STILLMAP_REQUIRES(mutex_) { return stopping_; });
  }

  void receive_commit(channel &with, const std::shared_ptr<session> &asked)
      STILLMAP_EXCLUDES(mutex_) {
    const auto m = migration::receive(with, kind::commit, max_request_bytes, options_.timeout);
    if (!m) return;
    const auto again = decode_outcome_query(m->body);
    if (!again) return refuse(with, again.error());
    if (status s = asked->commit(*again); !s) return refuse(with, s.error());
    {
      const lock_guard lock(mutex_);
      hand_over(asked);
    }
    // The first connection may be broken without an end: nothing more can come on it.
    asked->cancel();
    // If this is lost, the source asks again.
    (void)send(with, kind::owner, {}, options_.timeout);
  }

  // Of those that this process receives or has received. Null: there is none.
  std::shared_ptr<session> session_of(const session_id &id) const STILLMAP_EXCLUDES(mutex_) {
    const lock_guard lock(mutex_);
    if (current_ && current_->id() == id) return current_;
    for (const auto &s : owned_) {
      if (s->id() == id) return s;
    }
    return nullptr;
  }

  // `asked`: the session, if there is one.
  // Errors: as outcome_on_record().
  result<outcome> outcome_of(session *asked, const outcome_query &q) const
      STILLMAP_EXCLUDES(mutex_) {
    if (asked != nullptr) {
      if (const auto now = asked->answer_query()) return *now;
    }
    const lock_guard lock(mutex_);
    return outcome_on_record(q);
  }

  // The outcome by a record that may change; nullopt: only who holds the record can decide.
  // Errors: busy (no record of the transfer).
  static result<std::optional<outcome>> decided(const std::optional<record> &r,
                                                const outcome_query &q) {
    const incoming_transfer *const asked = r ? r->find(q.session) : nullptr;
    if (asked == nullptr || asked->epoch != q.epoch) {
      return make_error(errc::busy,
                        "this machine's records do not list the transfer, so its outcome is "
                        "unknown here: start the receiver where the task was sent to, with the "
                        "same directory of records",
                        q.epoch);
    }
    if (asked->state == transfer_state::refused) return outcome::refused;
    if (asked->state == transfer_state::offered || r->undelivered(*asked)) {
      return std::optional<outcome>();
    }
    return outcome::owner;
  }

  // Of a session of an earlier process. With the mutex, so that no session begins meanwhile.
  // Errors: busy (no record of the transfer; another process may still decide), the system's.
  result<outcome> outcome_on_record(const outcome_query &q) const STILLMAP_REQUIRES(mutex_) {
    // The task may be here again, in a process that holds the record.
    STILLMAP_ASSIGN_OR_RETURN(const auto seen,
                              read_record(options_.records, q.task, *options_.files));
    STILLMAP_ASSIGN_OR_RETURN(const auto known, decided(seen, q));
    if (known) return *known;
    STILLMAP_ASSIGN_OR_RETURN(record_file file,
                              record_file::open(options_.records, q.task, *options_.files));
    STILLMAP_ASSIGN_OR_RETURN(std::optional<record> r, file.read());
    STILLMAP_ASSIGN_OR_RETURN(const auto now, decided(r, q));
    if (now) return *now;
    // The process that received it has ended: it never ran here, and nothing can commit it.
    r->refuse(q.session, q.epoch);
    STILLMAP_RETURN_IF_ERROR(file.write(*r));
    return outcome::refused;
  }

  // Makes an owned session available to receive(), once.
  void hand_over(const std::shared_ptr<session> &s) noexcept STILLMAP_REQUIRES(mutex_) {
    if (!s->owned() || std::find(owned_.begin(), owned_.end(), s) != owned_.end()) return;
    session::list_elements &elements = s->elements();
    elements.owned.front() = s;
    owned_.splice(owned_.end(), elements.owned);
    elements.arrived.front() = s;
    arrived_.splice(arrived_.end(), elements.arrived);
    if (current_ == s) current_.reset();
    failure_.reset();
    changed_.notify_all();
  }

  const creating_process process_;
  const device device_;
  const std::unique_ptr<acceptor> acceptor_;
  const receive_options options_;
  std::thread acceptor_thread_, data_acceptor_thread_;

  mutable mutex mutex_;
  std::condition_variable_any changed_;  // for a stop_token
  bool stopping_ STILLMAP_GUARDED_BY(mutex_) = false;
  bool closed_ STILLMAP_GUARDED_BY(mutex_) = false;
  bool control_open_ STILLMAP_GUARDED_BY(mutex_) = false;  // current_'s control channel
  std::array<connection_list, 2> connections_ STILLMAP_GUARDED_BY(mutex_);  // by purpose
  std::shared_ptr<session> current_ STILLMAP_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<session>> arrived_ STILLMAP_GUARDED_BY(mutex_);
  // Since this process began.
  std::list<std::shared_ptr<session>> owned_ STILLMAP_GUARDED_BY(mutex_);
  std::optional<error> failure_ STILLMAP_GUARDED_BY(mutex_);
};

namespace {

// A task must not be accepted whose record could not be written.
status check_records(const std::string &directory) {
  struct stat st {};
  if (::stat(directory.c_str(), &st) == 0 && !S_ISDIR(st.st_mode))
    errno = ENOTDIR;
  else if (::access(directory.c_str(), R_OK | W_OK | X_OK) == 0)
    return {};
  return make_system_error(errno, "the directory of records cannot be read and written", directory);
}

}  // namespace

result<receiver> receiver::create(const device &d, std::unique_ptr<acceptor> at,
                                  receive_options options) {
  const operation_scope scope("receiver::create");
  if (options.records.empty()) {
    return make_error(errc::invalid_argument, "no directory for the ownership record");
  }
  return with_host_memory([&]() -> result<receiver> {
    if (const auto &a = options.data_acceptor;
        a && !can_be_announced({a->transport_name(), a->address()})) {
      return make_error(errc::invalid_argument,
                        "the data acceptor's transport or address cannot be announced to sources");
    }
    STILLMAP_RETURN_IF_ERROR(check_records(options.records));
    auto c = std::make_unique<core>(d, std::move(at), std::move(options));
    try {
      c->start();
    } catch (const std::system_error &e) {
      return make_system_error(e.code().value(), "no thread could be created");
    }
    return receiver(std::move(c));
  });
}

receiver::receiver(std::unique_ptr<core> c) : core_(std::move(c)) {}
receiver::receiver(receiver &&) noexcept = default;
receiver::~receiver() {
  if (core_ && !core_->process().is_current()) (void)core_.release();
}
std::string receiver::address() const {
  return core_->address();
}
result<received_memory> receiver::receive(std::chrono::milliseconds timeout,
                                          std::stop_token cancel) {
  return with_host_memory("receiver::receive", [&] { return core_->receive(timeout, cancel); });
}
void receiver::close() {
  if (core_->process().is_current()) core_->close();
}
std::optional<error> receiver::last_failure() const {
  return core_->last_failure();
}

}  // namespace stillmap::migration
