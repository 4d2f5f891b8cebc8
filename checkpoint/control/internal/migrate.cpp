// Migration requests of the executor: migrate, resolve, abort.
#include <utility>

#include "stillmap/checkpoint/control/internal/executor.h"
#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/tls.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::control {
namespace {

// Tells an error of the migration itself from one of the way to it, which the client makes.
error kept_here(const error &why) {
  const std::string note = "the task continues here, and nothing has changed";
  const std::string &cause = why.detail().cause;
  return why.with({.cause = cause.empty() ? note : cause + "; " + note});
}

}  // namespace

// A migration from its request until its outcome is known.
struct executor::active_migration {
  std::unique_ptr<executor::turn> turn;  // destroyed last
  std::vector<std::string> tags;
  std::unique_ptr<migration::transport> to;
  std::unique_ptr<migration::transport> decider;  // of the group, if there is one
  std::string records;
  bool stopped = false;  // quiesce() has succeeded, and resume_task() has not followed
  // Null once the client has its response.
  const std::function<void(const migration::progress &)> *on_progress = nullptr;
  std::optional<migration::sender> sender;
};

// Here, where active_migration is complete.
executor::executor(const device &d, const server_options &options)
    : device_(d), options_(options) {}
executor::~executor() = default;

void executor::set_progress(const migration::progress &p) {
  const lock_guard lock(mutex_);
  job_.step = p.step;
  job_.round = p.round;
  job_.bytes_sent = p.bytes_sent;
  job_.bytes = p.round_sent;
  job_.total_bytes = p.round_bytes;
}

// The request's options, with the server's where the request leaves them open.
result<migration::send_options> executor::send_options_for(const migrate_request &r) const {
  migration::send_options options;
  options.records = r.records.empty() ? options_.records : r.records;
  options.task = r.task.is_zero() ? options_.id : r.task;
  if (options_.record && (options.records != options_.records || options.task != options_.id)) {
    return make_error(
        errc::invalid_argument,
        "the server has the task's record open in another directory, or under another "
        "id");
  }
  if (options.task.is_zero() && options.records == kept_records_) options.task = kept_id_;
  options.channels = r.channels;
  options.max_downtime = r.max_downtime;
  options.max_rounds = r.max_rounds;
  options.on_no_convergence = r.on_no_convergence;
  options.bytes_per_second = r.bytes_per_second;
  options.timeout = r.timeout;
  options.resolve_timeout = r.resolve_timeout;
  options.idle = options_.idle;
  if (!r.only_tls) options.data_connector = options_.data_connector;
  return options;
}

result<migration::sent_memory> executor::migrate(
    const migrate_request &r, const std::stop_token &stop,
    const std::function<void(const migration::progress &)> &on_progress) {
  STILLMAP_RETURN_IF_ERROR(check_may_release());
  STILLMAP_ASSIGN_OR_RETURN(auto my_turn, take_turn(request_kind::migrate, stop));
  STILLMAP_ASSIGN_OR_RETURN(auto tags, tags_for(r.all, r.tags));
  STILLMAP_RETURN_IF_ERROR(check_mapped(tags));
  STILLMAP_ASSIGN_OR_RETURN(migration::credentials credentials,
                            migration::load_credentials(r.certificate, r.key, r.authorities));
  credentials.name = r.name;
  credentials.fingerprints = r.fingerprints;
  STILLMAP_ASSIGN_OR_RETURN(auto to, migration::create_tls_transport(r.to, credentials));
  STILLMAP_ASSIGN_OR_RETURN(migration::send_options options, send_options_for(r));
  auto m = std::make_unique<active_migration>();
  m->turn = std::move(my_turn);
  m->tags = std::move(tags);
  m->to = std::move(to);
  m->records = options.records;
  if (!r.group.is_zero()) {
    STILLMAP_ASSIGN_OR_RETURN(m->decider, migration::create_tls_transport(r.decider, credentials));
    options.group = {r.group, m->decider.get(), r.decider, r.group_timeout};
  }
  m->on_progress = &on_progress;
  options.cancel = m->turn->cancel().get_token();
  options.quiesce = [this, m = m.get(), cancel = options.cancel] {
    const stillmap::status s = quiesce(m->tags, cancel);
    m->stopped = s.has_value();
    return s;
  };
  options.resume = [this, m = m.get()] {
    if (std::exchange(m->stopped, false)) resume_task(m->tags);
  };
  if (options_.task.throttle) {
    options.throttle = [this, m = m.get()](double fraction) {
      options_.task.throttle(m->tags, fraction);
    };
  }
  options.on_progress = [this, m = m.get()](const migration::progress &p) {
    set_progress(p);
    if (m->on_progress != nullptr) (*m->on_progress)(p);
  };
  m->sender.emplace(device_, m->tags, std::move(options));
  if (options_.record) {
    // The sender opens the record itself.
    [[maybe_unused]] const migration::record_file closed = std::move(*options_.record);
  }
  migration::sent_memory sent = m->sender->send(*m->to);
  m->on_progress = nullptr;
  finish(std::move(m), sent);
  if (sent.owner == migration::owner::source) return tl::unexpected(kept_here(*sent.failure));
  return result<migration::sent_memory>(std::move(sent));
}

void executor::finish(std::unique_ptr<active_migration> m,
                      const migration::sent_memory &sent) noexcept {
  switch (sent.owner) {
    case migration::owner::destination:
      m->turn->succeeded();
      kept_records_.clear();
      if (options_.task.released) options_.task.released(m->tags);
      break;
    case migration::owner::source:
      kept_records_ = std::move(m->records);
      kept_id_ = sent.task;
      if (options_.record) {
        m->sender.reset();
        auto record = migration::record_file::open(kept_records_, sent.task);
        if (record) {
          *options_.record = std::move(*record);
        } else {
          report_background_error(record.error());
        }
      }
      break;
    case migration::owner::in_doubt: {
      const lock_guard lock(mutex_);
      job_.in_doubt = true;
      in_doubt_ = std::move(m);
      changed_.notify_all();
      break;
    }
  }
}

result<migration::sent_memory> executor::resolve() {
  std::unique_ptr<active_migration> m;
  {
    const lock_guard lock(mutex_);
    m = std::move(in_doubt_);
    if (!m && job_.request != request_kind::none) return busy_locked();
  }
  if (!m) {
    return make_error(errc::invalid_argument, "no migration is in doubt");
  }
  migration::sent_memory sent = m->sender->resolve(*m->to);
  finish(std::move(m), sent);
  return result<migration::sent_memory>(std::move(sent));
}

result<request_kind> executor::abort(const std::stop_token &stop) {
  unique_lock lock(mutex_);
  const request_kind current = job_.request;
  const auto refused = [current](errc c, const char *reason) {
    return make_error(c, reason, static_cast<std::uint64_t>(current));
  };
  const bool can_be_cancelled = current == request_kind::snapshot ||
                                current == request_kind::restore ||
                                current == request_kind::migrate;
  if (!can_be_cancelled || job_.in_doubt) {
    return refused(errc::invalid_argument,
                   job_.in_doubt ? "the migration has ended and is in doubt: resolve it"
                                 : "no request that can be cancelled is being carried out");
  }
  const std::uint64_t before = jobs_ended_;
  std::stop_source cancel = cancel_;
  lock.unlock();
  cancel.request_stop();
  lock.lock();
  const bool over = changed_.wait(lock, stop, [&]() STILLMAP_REQUIRES(mutex_) {
    return jobs_ended_ != before || job_.in_doubt;
  });
  if (!over) return refused(errc::operation_canceled, "the request has not ended yet");
  if (jobs_ended_ == before || last_succeeded_) {
    return refused(errc::busy, jobs_ended_ != before ? "too late: the request has completed"
                                                     : "too late: the migration is in doubt");
  }
  return current;
}

}  // namespace stillmap::control
