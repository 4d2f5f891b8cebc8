#include "stillmap/allocators/admission/quota_responder.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

// Without a ring, how soon the thread looks again: rings of users that may not write its FIFO do not arrive.
constexpr std::chrono::milliseconds look_again{1000};

// Ends an answer.
class answering_scope {
 public:
  explicit answering_scope(std::atomic<bool> &answering) : answering_(answering) {}
  ~answering_scope() { answering_ = false; }
  answering_scope(const answering_scope &) = delete;

 private:
  std::atomic<bool> &answering_;
};

}  // namespace

quota_responder::~quota_responder() {
  stopping_ = true;
  const std::unique_ptr<std::jthread> running = take_thread();
  if (running == nullptr) return;
  running->request_stop();
  bell_.ring();
  running->join();
}

// In a forked child there is no such thread, and its parent may have held the mutex at the fork. Not analysed for that.
std::unique_ptr<std::jthread> quota_responder::take_thread() STILLMAP_NO_THREAD_SAFETY_ANALYSIS {
  if (!ledger_.file().is_open()) {
    static_cast<void>(thread_.release());
    return nullptr;
  }
  const lock_guard lock(mutex_);
  return std::move(thread_);
}

std::unique_ptr<reclaimer_registration> quota_responder::add(reclaim_kind kind,
                                                             reclaimer_list::function reclaim,
                                                             std::function<void()> offers_changed) {
  auto made = reclaimers_->add(kind, std::move(reclaim), offers_changed);
  offers_changed();
  return made;
}

status quota_responder::publish() {
  const std::uint8_t offers = reclaimers_->offers();
  bool listens = false;
  {
    const lock_guard lock(mutex_);
    listens = thread_ != nullptr;
  }
  return seat_.transact([&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
    quota_exchange &own = t.exchanges[seat_.slot()];
    own.offers = offers;
    own.listens = listens ? 1 : 0;
    STILLMAP_RETURN_IF_ERROR(ledger_.file().write(seat_.slot(), own, &quota_exchange::offers));
    return ledger_.file().write(seat_.slot(), own, &quota_exchange::listens);
  });
}

status quota_responder::start_thread() {
  STILLMAP_RETURN_IF_ERROR(seat_.check_not_forked());
  {
    const lock_guard lock(mutex_);
    if (thread_ != nullptr) return {};
    STILLMAP_RETURN_IF_ERROR(bell_.open(ledger_.path(), seat_.slot()));
    try {
      thread_ = std::make_unique<std::jthread>(stillmap::start_thread(
          [this, name = operation_scope::current()](const std::stop_token &stop) {
            const operation_scope scope(name);
            run(stop);
          }));
    } catch (const std::system_error &e) {
      return make_system_error(e.code().value(), "the thread cannot be started");
    }
  }
  return publish();
}

void quota_responder::run(const std::stop_token &stop) noexcept {
  while (!stop.stop_requested()) {
    bell_.wait(look_again);
    if (stop.stop_requested()) return;
    if (const auto answered = answer(false); !answered) report_background_error(answered.error());
  }
}

result<std::uint64_t> quota_responder::answer(bool safe_point) {
  STILLMAP_RETURN_IF_ERROR(seat_.check_not_forked());
  // Another thread answers, or this one in a reclaimer: who asked asks again.
  if (answering_.exchange(true)) return 0;
  const answering_scope one(answering_);
  std::uint64_t released = 0;
  while (!stopping_) {
    STILLMAP_ASSIGN_OR_RETURN(const quota_ask asked, open_ask());
    if (asked.number == 0) return released;
    if (asked.kind == reclaim_kind::task && !safe_point) return released;
    const reclaimer_list::outcome given = give(asked);
    released += given.released;
    if (given.later && given.released < asked.bytes) {
      STILLMAP_RETURN_IF_ERROR(leave_open(asked));
      return released;
    }
    STILLMAP_RETURN_IF_ERROR(close(asked, given.released));
  }
  return released;
}

// The number is 0 where nothing is asked, or all is answered: nothing is given up for one that waits no more.
result<quota_ask> quota_responder::open_ask() {
  quota_ask out;
  const auto look = [&](quota_table &t) -> status {
    const quota_exchange &own = t.exchanges[seat_.slot()];
    const bool is_open = own.ask.number != own.answer.number;
    const auto kind = static_cast<std::size_t>(own.ask.kind);
    if (is_open && kind < reclaim_kinds && quota_rules(t).is_asking(own.ask)) out = own.ask;
    return {};
  };
  const status read = seat_.transact(look, quota_part::grant);
  if (!read) return tl::unexpected<error>(read.error());
  return out;
}

// All kinds up to the one that is asked for, the cheapest first: the question about it may have been replaced by
// the next one.
reclaimer_list::outcome quota_responder::give(const quota_ask &asked) {
  const quota_seat::outside_room scope;
  reclaimer_list::outcome out;
  for (std::size_t k = 0; k <= static_cast<std::size_t>(asked.kind); ++k) {
    if (out.released >= asked.bytes) break;
    const auto kind = static_cast<reclaim_kind>(k);
    const reclaimer_list::outcome one = reclaimers_->reclaim(kind, asked.bytes - out.released);
    out.released += one.released;
    out.later = out.later || one.later;
    const lock_guard lock(mutex_);
    totals_.asked_for[k] += kind == asked.kind ? 1 : 0;
    totals_.given[k] += one.released;
  }
  return out;
}

// What is asked for is in use: others are asked meanwhile.
status quota_responder::leave_open(const quota_ask &asked) {
  return seat_.transact([&](quota_table &t) -> status {
    quota_exchange &own = t.exchanges[seat_.slot()];
    if (own.later == asked.number) return {};
    own.later = asked.number;
    return ledger_.file().write(seat_.slot(), own, &quota_exchange::later);
  });
}

status quota_responder::close(const quota_ask &asked, std::uint64_t given) {
  return seat_.transact([&](quota_table &t) -> status {
    quota_exchange &own = t.exchanges[seat_.slot()];
    own.answer = {asked.number, given};
    STILLMAP_RETURN_IF_ERROR(ledger_.file().write(seat_.slot(), own, &quota_exchange::answer));
    const std::uint32_t by = asked.by < t.header.used ? t.shares[asked.by].holding.process : 0;
    return ledger_.note(t, {.bytes = given,
                            .action = quota_action::answered,
                            .process = seat_.process(),
                            .other = by,
                            .kind = static_cast<std::uint32_t>(asked.kind)});
  });
}

quota_responder::figures quota_responder::totals() const {
  const lock_guard lock(mutex_);
  return totals_;
}

}  // namespace stillmap
