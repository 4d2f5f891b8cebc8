// Memory that is sent to another machine by request, and what became of it.
#include <utility>

#include "stillmap/checkpoint/control/internal/executor.h"
#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/tls.h"

namespace stillmap::control {
namespace {

constexpr const char *op = "control::migrate";

tl::unexpected<failure> refused(errc c, const char *operation, const char *why,
                                std::uint64_t value = 0, std::uint64_t limit = 0) {
  return fail(error{make_error_code(c), operation, why, value, limit});
}

// With the path of what is wrong: there are three files, in another process.
outcome<migration::credentials> credentials_of(const migrate_request &r) {
  migration::credentials out;
  const auto load = [&](const std::string &path, std::string &into) -> outcome<void> {
    auto one = migration::load_credentials(path, {});
    if (!one) {
      failure f(one.error());
      f.text = path + ": " + f.text;
      return tl::unexpected<failure>(std::move(f));
    }
    into = std::move(one->certificate);
    return {};
  };
  for (const auto &[path, into] : {std::pair{&r.certificate, &out.certificate},
                                   {&r.key, &out.key},
                                   {&r.authorities, &out.authorities}}) {
    if (auto loaded = load(*path, *into); !loaded) return tl::unexpected(loaded.error());
  }
  out.name = r.name;
  out.fingerprints = r.fingerprints;
  return out;
}

}  // namespace

// A migration from its request until it is known whose the memory is.
struct operations::moving {
  std::unique_ptr<turn> mine;  // goes last
  std::vector<std::string> tags;
  std::unique_ptr<migration::transport> to;
  std::string records;
  bool stopped = false;  // the task, by its quiesce
  const std::function<void(const migration::progress &)> *told = nullptr;  // who asked
  std::optional<migration::sender> by;
};

// Here, where what is undecided is known.
operations::operations(const device &d, const server_options &how) : device_(d), how_(how) {}
operations::~operations() = default;

void operations::note(const migration::progress &p) {
  const std::lock_guard lock(mutex_);
  job_.step = p.at;
  job_.round = p.round;
  job_.sent = p.sent;
  job_.bytes = p.round_sent;
  job_.of_bytes = p.round_bytes;
}

// What the request says, and what it leaves to the server.
result<migration::send_options> operations::how_to_send(const migrate_request &r) const {
  migration::send_options how;
  how.records = r.records.empty() ? how_.records : r.records;
  how.task = r.task.is_zero() ? how_.id : r.task;
  if (how_.record && (how.records != how_.records || how.task != how_.id)) {
    return make_error(errc::invalid_argument, op,
                  "the task is on record elsewhere, or under another number");
  }
  if (how.task.is_zero() && how.records == stayed_in_) how.task = stayed_as_;
  how.channels = r.channels;
  how.pause = r.pause;
  how.most_rounds = r.most_rounds;
  how.otherwise = r.otherwise;
  how.bytes_per_second = r.bytes_per_second;
  how.wait = r.wait;
  how.settle = r.settle;
  how.idle = how_.idle;
  return how;
}

outcome<migrated> operations::migrate(
    const migrate_request &r, const std::stop_token &stop,
    const std::function<void(const migration::progress &)> &told) {
  auto mine = take_turn(request_kind::migrate, stop);
  if (!mine) return tl::unexpected<failure>(busy());
  if (auto s = check_live(r.tags, op); !s) return tl::unexpected(s.error());
  const auto who = credentials_of(r);
  if (!who) return tl::unexpected(who.error());
  auto to = migration::tls_to(r.to, *who);
  if (!to) return fail(to.error());
  auto how = how_to_send(r);
  if (!how) return fail(how.error());
  auto m = std::make_unique<moving>();
  m->mine = std::move(mine);
  m->tags = r.tags;
  m->to = std::move(*to);
  m->records = how->records;
  m->told = &told;
  how->abort = abort_.get_token();
  how->quiesce = [this, m = m.get(), given_up = how->abort] {
    const status s = quiesce(m->tags, given_up);
    m->stopped = s.has_value();
    return s;
  };
  how->go_on = [this, m = m.get()] {
    if (std::exchange(m->stopped, false)) go_on(m->tags);
  };
  if (how_.task.throttle) {
    how->throttle = [this, m = m.get()](double part) { how_.task.throttle(m->tags, part); };
  }
  how->at = [this, m = m.get()](const migration::progress &p) {
    note(p);
    if (m->told != nullptr) (*m->told)(p);
  };
  // The sender takes the record itself.
  if (how_.record) [[maybe_unused]]
    const auto given_up = std::move(*how_.record);
  m->by.emplace(device_, r.tags, std::move(*how));
  const migration::sent_memory sent = m->by->send(*m->to);
  m->told = nullptr;
  auto out = ended(std::move(m), sent);
  if (out && out->sent.whose == migration::whose::source) return tl::unexpected(out->why);
  return out;
}

outcome<migrated> operations::ended(std::unique_ptr<moving> m, const migration::sent_memory &sent) {
  migrated out;
  out.sent = sent;
  out.sent.why.reset();
  if (sent.why) out.why = failure(*sent.why);
  switch (sent.whose) {
    case migration::whose::destination:
      m->mine->went_well();
      stayed_in_.clear();
      if (how_.task.given_away) how_.task.given_away(m->tags);
      break;
    case migration::whose::source:
      stayed_in_ = m->records;
      stayed_as_ = sent.task;
      if (how_.record) {
        m->by.reset();
        auto again = migration::record_file::open(m->records, sent.task);
        if (again) {
          *how_.record = std::move(*again);
        } else {
          report_background_error(again.error());
        }
      }
      break;
    case migration::whose::undecided: {
      const std::lock_guard lock(mutex_);
      job_.undecided = true;
      undecided_ = std::move(m);
      changed_.notify_all();
      break;
    }
  }
  return out;
}

outcome<migrated> operations::settle() {
  std::unique_ptr<moving> m;
  request_kind what = request_kind::none;
  {
    const std::lock_guard lock(mutex_);
    m = std::move(undecided_);
    what = job_.what;
  }
  if (!m && what == request_kind::none) {
    return refused(errc::invalid_argument, "control::settle", "nothing is undecided here");
  }
  if (!m) return tl::unexpected<failure>(busy());
  const migration::sent_memory sent = m->by->settle(*m->to);
  return ended(std::move(m), sent);
}

outcome<request_kind> operations::abort(const std::stop_token &stop) {
  std::unique_lock lock(mutex_);
  const request_kind what = job_.what;
  if ((what != request_kind::snapshot && what != request_kind::migrate) || job_.undecided) {
    return refused(errc::invalid_argument, "control::abort",
                   job_.undecided ? "the migration is over and undecided: ask for settle"
                                  : "nothing is under way that can be given up",
                   static_cast<std::uint64_t>(what));
  }
  const std::uint64_t before = jobs_ended_;
  std::stop_source it = abort_;
  lock.unlock();
  it.request_stop();
  lock.lock();
  changed_.wait(lock, stop, [&] { return jobs_ended_ != before || job_.undecided; });
  if (jobs_ended_ == before || ended_well_) {
    return refused(errc::busy, "control::abort",
                   jobs_ended_ != before ? "it was too late: it has been done"
                   : job_.undecided      ? "it was too late: the migration is undecided"
                                         : "it was told to, and has not ended yet",
                   static_cast<std::uint64_t>(what));
  }
  return what;
}

}  // namespace stillmap::control
