#include "stillmap/allocators/shared_quota.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "stillmap/allocators/admission/quota_bell.h"
#include "stillmap/allocators/admission/quota_ledger.h"
#include "stillmap/allocators/admission/quota_responder.h"
#include "stillmap/allocators/admission/quota_seat.h"
#include "stillmap/allocators/admission/quota_settings.h"
#include "stillmap/allocators/admission/room_request.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap {
namespace {

static_assert(shared_quota::lock_timeout == quota_ledger::lock_timeout &&
              shared_quota::max_participants == quota_table::max_slots);

// Names the file in an error. A refusal, which is ordinary, costs no host memory.
template <class T>
T named(T r, const quota_ledger &l) {
  if (r || r.error().is(errc::out_of_memory)) return r;
  return tl::unexpected<error>(r.error().about(l.path()));
}

quota_event event_of(const quota_record &r) {
  return {.number = r.number,
          .time_ns = r.time,
          .action = r.action,
          .process = r.process,
          .other = r.other,
          .kind = static_cast<reclaim_kind>(r.kind),
          .bytes = r.bytes,
          .waited = std::chrono::microseconds(r.waited)};
}

// Calls act(ledger, table) in a transaction on an existing quota that this process need not take part in.
template <class Act>
auto on_existing(const char *operation, const std::string &name, Act act)
    -> std::invoke_result_t<Act, quota_ledger &, quota_table &> {
  using outcome = std::invoke_result_t<Act, quota_ledger &, quota_table &>;
  return with_host_memory(operation, [&]() -> outcome {
    const auto l = std::make_unique<quota_ledger>(name);
    outcome out = tl::unexpected<error>(error{});
    status done = l->file().open(l->path().c_str(), l->only_own(), false);
    if (done) {
      done = l->transact([&](quota_table &t) -> status {
        if (t.header.magic == 0) return make_error(errc::corrupt, "the file is not a quota");
        STILLMAP_RETURN_IF_ERROR(l->remove_dead(t, quota_ledger::npos));
        out = act(*l, t);
        return {};
      });
    }
    if (!done) out = tl::unexpected<error>(done.error());
    return named(std::move(out), *l);
  });
}

}  // namespace

class shared_quota::participant {
 public:
  participant(const std::string &name, shared_quota_options options)
      : options_(std::move(options)), ledger_(name) {}

  status join() {
    // Without a limit it creates nothing.
    const bool create = options_.limit != 0;
    const status opened = ledger_.file().open(ledger_.path().c_str(), ledger_.only_own(), create);
    if (!opened && !create && opened.error().code == std::errc::no_such_file_or_directory) {
      return make_error(errc::invalid_argument,
                        "the quota does not exist, and no limit was given to create it");
    }
    STILLMAP_RETURN_IF_ERROR(opened);
    return ledger_.begin(options_.limit,
                         [&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
                           return seat_.take(t, options_.terms);
                         });
  }

  status make_room(std::uint64_t bytes) {
    STILLMAP_RETURN_IF_ERROR(seat_.check_not_forked());
    const clock::time_point until = clock::now() + options_.timeout;
    const turn mine(*this, until);
    if (!mine.has_come()) {
      return make_error(errc::busy, "other threads of this process waited for memory all the time",
                        bytes, 0, error_unit::bytes);
    }
    room_request request(ledger_, seat_, bytes, until);
    const status done = wait_for(request);
    if (!done) request.withdraw();
    count(request, done);
    return done;
  }

  result<quota_change> set_limit(std::uint64_t bytes, std::optional<std::uint64_t> if_revision) {
    quota_change out{};
    const status done = seat_.transact([&](quota_table &t) -> status {
      STILLMAP_ASSIGN_OR_RETURN(out, quota_settings(ledger_, t).set_limit(bytes, if_revision));
      return {};
    });
    if (!done) return tl::unexpected<error>(done.error());
    return out;
  }

  result<quota_stats> stats() {
    quota_stats out;
    const status read =
        seat_.transact([&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
          STILLMAP_RETURN_IF_ERROR(ledger_.remove_dead(t, seat_.slot()));
          out = quota_settings(ledger_, t).stats();
          out.own = seat_.reserved();
          return {};
        });
    if (!read) return tl::unexpected<error>(read.error());
    const quota_responder::figures totals = responder_.totals();
    const lock_guard lock(waits_mutex_);
    out.waits = waits_;
    out.waits.asked_for = totals.asked_for;
    out.waits.given = totals.given;
    return out;
  }

  quota_ledger &ledger() { return ledger_; }
  quota_seat &seat() { return seat_; }
  quota_responder &responder() { return responder_; }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t most_recent = 512;
  // Between two looks at the ledger: at first, and at most. The device is measured less often.
  static constexpr std::chrono::microseconds first_pause{200}, longest_pause{2'000};
  static constexpr std::chrono::milliseconds between_measures{20};

  // One thread of the process waits at a time. The others wait for it, no longer than they would anyway.
  class turn {
   public:
    turn(participant &p, clock::time_point until) : participant_(p) {
      unique_lock lock(p.waits_mutex_);
      is_mine_ =
          p.turn_over_.wait_for(lock, until - clock::now(),
                                [&]() STILLMAP_REQUIRES(p.waits_mutex_) { return !p.is_waiting_; });
      if (is_mine_) p.is_waiting_ = true;
    }
    ~turn() {
      if (!is_mine_) return;
      const lock_guard lock(participant_.waits_mutex_);
      participant_.is_waiting_ = false;
      participant_.turn_over_.notify_one();
    }
    turn(const turn &) = delete;
    bool has_come() const { return is_mine_; }

   private:
    participant &participant_;
    bool is_mine_ = false;
  };

  status wait_for(room_request &request) {
    clock::time_point measured{};
    for (auto pause = first_pause;; pause = std::min(pause * 2, longest_pause)) {
      std::optional<device_use> use;
      if (options_.device && clock::now() >= measured + between_measures) {
        STILLMAP_RETURN_IF_ERROR(request.prepare_measure());
        if (const auto now = options_.device->memory()) {
          use = {now->total.bytes(), now->total.bytes() - now->free.bytes()};
        }
        measured = clock::now();
      }
      STILLMAP_ASSIGN_OR_RETURN(const auto looked, request.look(use));
      if (looked == room_request::progress::granted) return {};
      request.ring();
      // It may be asked while it waits.
      if (request.is_asked_itself()) STILLMAP_RETURN_IF_ERROR(responder_.answer(false));
      std::this_thread::sleep_for(pause);
    }
  }

  void count(const room_request &request, const status &done) noexcept {
    const auto waited = request.waited();
    const lock_guard lock(waits_mutex_);
    ++waits_.waits;
    waits_.total += waited;
    waits_.longest = std::max(waits_.longest, waited);
    waits_.most_overtaken = std::max(waits_.most_overtaken, request.overtaken());
    if (!done) {
      ++waits_.busy;
    } else if (waits_.recent.size() < most_recent) {
      waits_.recent.push_back(waited);
      ++waits_.granted;
    } else {
      waits_.recent[waits_.granted++ % most_recent] = waited;
    }
  }

  const shared_quota_options options_;
  quota_ledger ledger_;
  quota_seat seat_{ledger_};
  quota_responder responder_{ledger_, seat_};
  mutex waits_mutex_;
  condition_variable turn_over_;
  bool is_waiting_ STILLMAP_GUARDED_BY(waits_mutex_) = false;
  quota_wait_stats waits_ STILLMAP_GUARDED_BY(waits_mutex_);
};

shared_quota::shared_quota(std::unique_ptr<participant> p) : participant_(std::move(p)) {}
shared_quota::~shared_quota() = default;

result<std::shared_ptr<shared_quota>> shared_quota::open(const std::string &name,
                                                         shared_quota_options options) {
  return with_host_memory("shared_quota::open", [&]() -> result<std::shared_ptr<shared_quota>> {
    if (name.empty()) return make_error(errc::invalid_argument, "the name is empty");
    // All host memory first: a file that is created is kept.
    std::shared_ptr<shared_quota> made(
        new shared_quota(std::make_unique<participant>(name, std::move(options))));
    STILLMAP_RETURN_IF_ERROR(named(made->participant_->join(), made->participant_->ledger()));
    return made;
  });
}

status shared_quota::remove(const std::string &name) {
  return with_host_memory("shared_quota::remove", [&]() -> status {
    // What dead participants have left beside the file. A file that is no quota is deleted, too.
    const auto l = std::make_unique<quota_ledger>(name);
    if (l->file().open(l->path().c_str(), l->only_own(), false)) {
      [[maybe_unused]] const status cleaned =
          l->transact([&](quota_table &t) { return l->remove_dead(t, quota_ledger::npos); });
    }
    if (::unlink(l->path().c_str()) != 0) {
      return make_system_error(errno, "the file cannot be deleted", l->path());
    }
    // Those of live participants as well: they look once a second without.
    for (std::size_t i = 0; i < max_participants; ++i) quota_bell::remove(l->path(), i);
    return {};
  });
}

// ---- reserving, and waiting for others ----

status shared_quota::reserve(std::uint64_t bytes) {
  const operation_scope scope("shared_quota::reserve");
  return named(participant_->seat().reserve(bytes), participant_->ledger());
}

status shared_quota::release(std::uint64_t bytes) {
  const operation_scope scope("shared_quota::release");
  return named(participant_->seat().release(bytes), participant_->ledger());
}

result<std::uint64_t> shared_quota::available(std::uint64_t bytes) {
  const operation_scope scope("shared_quota::available");
  std::uint64_t left = 0;
  const auto look = [&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const auto d, participant_->seat().decide(t, bytes));
    const bool granted = d.what == quota_rules::verdict::granted;
    left = granted ? bytes : quota_rules(t).available(participant_->seat().slot());
    return {};
  };
  STILLMAP_RETURN_IF_ERROR(
      named(participant_->seat().transact(look, quota_part::grant), participant_->ledger()));
  return std::min(bytes, left);
}

status shared_quota::make_room(std::uint64_t bytes) {
  return with_host_memory("shared_quota::make_room", [&]() -> status {
    return named(participant_->make_room(bytes), participant_->ledger());
  });
}

void shared_quota::end_room() noexcept {
  participant_->seat().end_room();
}

// ---- giving back ----

std::unique_ptr<reclaimer_registration> shared_quota::add_reclaimer(
    reclaim_kind kind, std::function<std::uint64_t(std::uint64_t bytes)> reclaim) {
  const operation_scope scope("shared_quota::add_reclaimer");
  // The registration may outlive this object.
  const auto changed = [self = weak_from_this()] {
    const auto there = self.lock();
    if (there == nullptr) return;
    const status published = there->participant_->responder().publish();
    if (!published) report_background_error(published.error());
  };
  return participant_->responder().add(kind, std::move(reclaim), changed);
}

status shared_quota::start_thread() {
  return with_host_memory("shared_quota::start_thread", [&]() -> status {
    return named(participant_->responder().start_thread(), participant_->ledger());
  });
}

result<std::uint64_t> shared_quota::poll() {
  return with_host_memory("shared_quota::poll", [&]() -> result<std::uint64_t> {
    return named(participant_->responder().answer(true), participant_->ledger());
  });
}

result<std::uint64_t> shared_quota::retry_reclaim() {
  return with_host_memory("shared_quota::retry_reclaim", [&]() -> result<std::uint64_t> {
    return named(participant_->responder().answer(false), participant_->ledger());
  });
}

// ---- the limit, terms and statistics ----

result<quota_change> shared_quota::set_limit(std::uint64_t bytes,
                                             std::optional<std::uint64_t> if_revision) {
  return with_host_memory("shared_quota::set_limit", [&]() -> result<quota_change> {
    return named(participant_->set_limit(bytes, if_revision), participant_->ledger());
  });
}

result<quota_change> shared_quota::set_limit(const std::string &name, std::uint64_t bytes,
                                             std::optional<std::uint64_t> if_revision) {
  return on_existing("shared_quota::set_limit", name,
                     [&](quota_ledger &l, quota_table &t) -> result<quota_change> {
                       return quota_settings(l, t).set_limit(bytes, if_revision);
                     });
}

result<quota_change> shared_quota::set_terms(const std::string &name, std::uint32_t process,
                                             const quota_terms &terms,
                                             std::optional<std::uint64_t> if_revision) {
  return on_existing("shared_quota::set_terms", name,
                     [&](quota_ledger &l, quota_table &t) -> result<quota_change> {
                       return quota_settings(l, t).set_terms(process, terms, if_revision);
                     });
}

result<quota_stats> shared_quota::stats() {
  return with_host_memory("shared_quota::stats", [&]() -> result<quota_stats> {
    return named(participant_->stats(), participant_->ledger());
  });
}

result<quota_stats> shared_quota::stats_of(const std::string &name) {
  return on_existing("shared_quota::stats_of", name,
                     [](quota_ledger &l, quota_table &t) -> result<quota_stats> {
                       return quota_settings(l, t).stats();
                     });
}

result<std::vector<quota_event>> shared_quota::events_of(const std::string &name) {
  return on_existing("shared_quota::events_of", name,
                     [](quota_ledger &l, quota_table &t) -> result<std::vector<quota_event>> {
                       std::vector<quota_record> found;
                       STILLMAP_RETURN_IF_ERROR(l.file().read_events(t.header, found));
                       std::vector<quota_event> out;
                       for (const quota_record &r : found) out.push_back(event_of(r));
                       return out;
                     });
}

result<quota_observation> shared_quota::observe(const std::string &name, std::uint32_t owner) {
  return with_host_memory("shared_quota::observe", [&]() -> result<quota_observation> {
    const auto l = std::make_unique<quota_ledger>(name);
    if (!l->only_own())
      return make_error(errc::invalid_argument, "the name is a path, which is not followed");
    const auto read = [&]() -> result<quota_observation> {
      const quota_file &file = l->file();
      STILLMAP_RETURN_IF_ERROR(l->file().open_to_read(l->path().c_str(), owner));
      const auto t = std::make_unique<quota_table>();
      STILLMAP_RETURN_IF_ERROR(file.read(*t));
      if (t->header.magic == 0) return make_error(errc::corrupt, "the file is not a quota");
      // Those that have died are there until a participant frees their slots.
      for (std::size_t i = 0; i < t->header.used; ++i) {
        if (t->shares[i].is_taken() && !file.is_slot_locked(i)) t->shares[i] = {};
      }
      quota_observation out;
      out.stats = quota_settings(*l, *t).stats();
      std::vector<quota_record> found;
      STILLMAP_RETURN_IF_ERROR(file.read_events(t->header, found));
      for (const quota_record &r : found) out.events.push_back(event_of(r));
      return out;
    };
    return named(read(), *l);
  });
}

const char *name_of(quota_action a) noexcept {
  constexpr std::array names = {"joined",  "left", "waits", "asked", "answered",
                                "granted", "busy", "limit", "terms"};
  const auto i = static_cast<std::size_t>(a);
  return i < names.size() ? names[i] : "unknown";
}

const char *name_of(reclaim_kind k) noexcept {
  constexpr std::array names = {"cached", "evictable", "task"};
  const auto i = static_cast<std::size_t>(k);
  return i < names.size() ? names[i] : "unknown";
}

}  // namespace stillmap
