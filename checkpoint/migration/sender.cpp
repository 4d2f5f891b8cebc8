#include <algorithm>
#include <thread>
#include <utility>

#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/migration/internal/group_member.h"
#include "stillmap/checkpoint/migration/internal/precopy.h"
#include "stillmap/checkpoint/migration/internal/progress_reporter.h"
#include "stillmap/checkpoint/migration/internal/source_connections.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::migration {
namespace {

using clock = std::chrono::steady_clock;

// A destination whose records were restored from an older copy may refuse a task that it has
// accepted. Then the task runs twice, and the epoch of the source must be newer than all that the
// other one and its next owners take.
constexpr std::uint64_t epochs_of_a_refusal = 1000;

std::chrono::duration<double> since(clock::time_point t) {
  return clock::now() - t;
}

status check(const send_options &options, std::size_t page_bytes) {
  const auto invalid = [](const char *reason, std::uint64_t value = 0, std::uint64_t limit = 0,
                          error_unit unit = error_unit::none) {
    return make_error(errc::invalid_argument, reason, value, limit, unit);
  };
  if (options.records.empty()) return invalid("no directory for the ownership record");
  if (options.channels == 0 || options.channels > max_channels) {
    return invalid("the number of channels is out of range", options.channels, max_channels,
                   error_unit::items);
  }
  if (options.chunk_bytes < min_chunk_bytes || options.chunk_bytes > max_chunk_bytes ||
      (options.chunk_bytes & (options.chunk_bytes - 1)) != 0 ||
      page_bytes % options.chunk_bytes != 0) {
    return invalid("the chunk size is not a power of two from 64 KiB to the page size",
                   options.chunk_bytes, page_bytes, error_unit::bytes);
  }
  if (options.max_rounds == 0) return invalid("at least one round of copying is needed");
  return {};
}

}  // namespace

class sender::core {
 public:
  core(const device &d, std::span<const std::string> tags, send_options options)
      : device_(d), tags_(tags.begin(), tags.end()), options_(std::move(options)) {}

  sent_memory send(transport &to) {
    if (out_.owner != owner::source) {
      sent_memory out = outcome_now();
      out.failure = make_error(errc::invalid_argument, "the task has already been sent").value();
      return out;
    }
    out_ = {};
    to_ = {};
    began_ = clock::now();
    const status s = with_host_memory([&] { return attempt(to); });
    out_.elapsed = since(began_);
    if (!s) keep(s.error());
    return outcome_now();
  }

  // A task that its group has left behind has one way only.
  sent_memory send_again(transport &to) {
    connections_.reset();
    memory_.reset();
    record_.reset();
    group_.reset();
    options_.cancel = {};  // of the request that began the group
    out_.owner = owner::source;
    const status s = with_host_memory([&] { return attempt(to); });
    if (!s) keep(s.error());
    return outcome_now();
  }

  sent_memory resolve(transport &to) {
    const auto fail = [this](const error &e) {
      out_.failure = e;
      return outcome_now();
    };
    if (left_behind_ && mine_.state != ownership::intent) return send_again(to);
    if (!record_) {
      const status s = with_host_memory([&] { return open_record(); });
      if (!s) return fail(s.error());
    }
    if (mine_.state != ownership::intent) {
      out_.owner = mine_.state == ownership::released ? owner::destination : owner::source;
      if (mine_.state == ownership::owner && !mine_.group.id.is_zero()) return fail(lost());
      return fail(make_error(errc::invalid_argument,
                             "the ownership of this task is not in doubt (its epoch)", mine_.epoch)
                      .value());
    }
    if (!mine_.group.id.is_zero() && !group_) {
      if (options_.group.decider == nullptr) {
        const error e = make_error(errc::invalid_argument,
                                   "a group decides whether this task moves: ask its decider")
                            .value();
        return fail(e.about(mine_.group.address));
      }
      const status s = with_host_memory([&]() -> status {
        group_reference of = mine_.group;
        if (options_.certificate_replaced) of.certificate.clear();
        group_.emplace(options_.group, std::move(of), options_.timeout);
        return {};
      });
      if (!s) return fail(s.error());
    }
    out_.owner = owner::in_doubt;
    out_.task = mine_.task;
    find_outcome(to, make_error(errc::busy, "the destination is unreachable").value());
    if (out_.owner == owner::source) keep(error(*out_.failure));
    return outcome_now();
  }

  progress now() const { return reporter_.now(); }

 private:
  // Migrates. Failure: the source owns the task, unless out_ says otherwise.
  status attempt(transport &to) {
    STILLMAP_RETURN_IF_ERROR(check(options_, device_.capabilities().page_bytes));
    STILLMAP_ASSIGN_OR_RETURN(
        const auto alone,
        checkpoint::tag_lease::take(device_, tags_, checkpoint::lease_kind::exclusive));
    STILLMAP_RETURN_IF_ERROR(open_record());
    if (mine_.state != ownership::owner && mine_.state != ownership::running) {
      return make_error(errc::busy, "this machine does not own the task, by its record (its epoch)",
                        mine_.epoch);
    }
    if (!left_behind_ && !mine_.group.id.is_zero()) return tl::unexpected(lost());
    if (!left_behind_ && !options_.group.id.is_zero()) {
      group_member joining(options_.group, {}, options_.timeout);
      STILLMAP_RETURN_IF_ERROR(joining.join());
      group_.emplace(std::move(joining));
    }
    STILLMAP_ASSIGN_OR_RETURN(const image::digest_key key, image::make_digest_key());
    memory_.emplace(device_, tags_, options_.chunk_bytes, key);
    STILLMAP_RETURN_IF_ERROR(memory_->update());
    out_.bytes = memory_->bytes();
    reached(step::described);
    connections_.emplace(device_, options_);
    {
      const std::stop_callback on_cancel(options_.cancel, [this] { connections_->shutdown(); });
      status s = copy_all(to);
      if (options_.cancel.stop_requested()) {
        s = make_error(errc::operation_canceled, "stop requested");
      }
      if (!s) return s;
      // From here on the migration cannot be cancelled.
    }
    return transfer_ownership(to);
  }

  status open_record() {
    if (options_.task.is_zero()) {
      STILLMAP_ASSIGN_OR_RETURN(const auto id, image::make_id());
      options_.task = task_id{id.bytes};
    }
    out_.task = options_.task;
    STILLMAP_ASSIGN_OR_RETURN(record_file file,
                              record_file::open(options_.records, options_.task, *options_.files));
    STILLMAP_ASSIGN_OR_RETURN(const std::optional<record> before, file.read());
    record mine = before.value_or(record{});
    record_.emplace(std::move(file));
    mine_ = std::move(mine);
    mine_.task = options_.task;
    out_.epoch = mine_.epoch;
    return {};
  }

  status copy_all(transport &to) {
    const hello h{options_.task,
                  mine_.epoch,
                  device_.capabilities().page_bytes,
                  options_.chunk_bytes,
                  static_cast<std::uint32_t>(options_.channels),
                  memory_->key()};
    STILLMAP_RETURN_IF_ERROR(connections_->open(to, h));
    to_ = connections_->peer();
    reached(step::connected);
    STILLMAP_RETURN_IF_ERROR(connections_->prepare(memory_->layout()));
    reached(step::prepared);
    const status opened = connections_->open_channels(to);
    out_.data_transport = connections_->data_transport();
    out_.data_fallback = connections_->data_fallback();
    STILLMAP_RETURN_IF_ERROR(opened);
    reached(step::channels_open);
    precopy copy(options_, *memory_, *connections_, reporter_, out_);
    const status copied = with_host_memory([&] { return copy.copy_while_running(); });
    throttled_ = copy.throttled();
    if (!copied) return copied;
    if (group_) STILLMAP_RETURN_IF_ERROR(await_others(copy));
    reporter_.stopping();
    if (options_.cancel.stop_requested()) {
      return make_error(errc::operation_canceled, "stop requested");
    }
    if (!stopped_) stopped_at_ = clock::now();
    if (options_.quiesce && !stopped_) {
      stopped_ = true;
      STILLMAP_RETURN_IF_ERROR(options_.quiesce());
    }
    const auto idle = options_.idle ? std::optional<fence>(options_.idle()) : std::nullopt;
    STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(device_, idle));
    reached(step::quiesced);
    return copy.copy_rest();
  }

  // Until all tasks of the group can be stopped.
  status await_others(precopy &copy) {
    reached(step::ready);
    // It would be slow for as long as the slowest of the others needs.
    if (std::exchange(throttled_, false)) options_.throttle(0);
    for (;;) {
      STILLMAP_ASSIGN_OR_RETURN(const bool all_ready, group_->may_stop());
      if (all_ready) return {};
      if (options_.cancel.stop_requested()) {
        return make_error(errc::operation_canceled, "stop requested");
      }
      if (!connections_->is_alive()) {
        return make_error(errc::busy, "the destination has ended the migration");
      }
      STILLMAP_RETURN_IF_ERROR(copy.copy_again());
    }
  }

  // The destination has all contents, and awaits the commit.
  status transfer_ownership(transport &to) {
    record next = mine_;
    if (group_) {
      next.group = group_->reference();
    } else {
      left_by_ = std::exchange(next.group, {});  // nobody but the destination decides now
    }
    next.state = ownership::intent;
    next.session = connections_->session();
    next.peer = to_.address + ' ' + to_.name;
    next.certificate = to_.fingerprint;
    if (status s = record_->write(next); !s) {
      // The intent may be on disk all the same, and until the destination has given up, another
      // process could commit it.
      restore_record();
      return s;
    }
    // Nothing here may fail: the intent is on record.
    mine_ = std::move(next);
    out_.owner = owner::in_doubt;
    reached(step::intent_recorded);
    if (group_) {
      const auto decided = with_host_memory([&] {
        return group_->await_decision(options_.cancel, [&] { return !connections_->is_alive(); });
      });
      if (!decided) {
        out_.failure = decided.error();
        return {};
      }
      if (*decided == group_state::aborted) {
        take_back();
        return tl::unexpected(*out_.failure);
      }
      group_committed();
    }
    const status sent = connections_->commit(query());
    reached(step::commit_sent);
    if (sent) {
      release();
      return {};
    }
    find_outcome(to, sent.error());
    if (out_.owner == owner::source) return tl::unexpected(*out_.failure);
    return {};
  }

  // Writes that the task is here. If that fails, no other process may read what is on disk.
  void restore_record() noexcept {
    const status s = record_->write(mine_);
    if (s) return;
    report_background_error(s.error());
    record_file::keep_locked(std::move(*record_), std::move(mine_));
    record_.reset();
    mine_ = {};
  }

  // All tasks of the group move.
  void group_committed() {
    group_is_committed_ = true;
    reached(step::group_committed);
  }

  // No task of the group moves. The destination has received no commit, and nobody will send it one.
  void take_back() noexcept {
    mine_.state = ownership::owner;
    mine_.certificate.clear();
    mine_.group = {};
    out_.owner = owner::source;
    out_.failure = make_error(errc::operation_canceled,
                              "the group was aborted: another of its tasks cannot move, or it was "
                              "not decided in time")
                       .value();
    restore_record();
  }

  // The destination never had the task: it is here, under a newer epoch.
  void refused() noexcept {
    mine_.state = ownership::owner;
    mine_.certificate.clear();
    mine_.epoch += 1 + epochs_of_a_refusal;
    out_.epoch = mine_.epoch;
    if (group_is_committed_) {
      // The record names the group, so no other process runs the task either.
      if (mine_.group.id.is_zero()) mine_.group = std::move(left_by_);
      left_behind_ = memory_.has_value();
      out_.failure = left_behind_ ? left_behind() : lost();
    }
    if (!left_behind_) out_.owner = owner::source;
    restore_record();
  }

  static error left_behind() {
    return make_error(errc::busy,
                      "the group has moved, and this task's destination ended before it had the "
                      "task, which is stopped here: start a receiver there, and resolve, which "
                      "sends the task again")
        .value();
  }

  static error lost() {
    return make_error(
               errc::not_supported,
               "by its record, a group has moved without this task, and the process that had "
               "its memory has ended: restore it from an image, under another id")
        .value();
  }

  outcome_query query() const { return {mine_.task, mine_.session, mine_.epoch + 1}; }

  // After the intent is on record: asks until the destination replies, or resolve_timeout has
  // passed.
  void find_outcome(transport &to, const error &why) noexcept {
    out_.failure = why;
    const std::string_view expected =
        options_.certificate_replaced ? std::string_view() : mine_.certificate;
    const auto until = clock::now() + options_.resolve_timeout;
    for (auto delay = std::chrono::milliseconds(50);;
         delay = std::min(delay * 2, std::chrono::milliseconds(1000))) {
      const bool last = clock::now() + delay > until;
      const auto reply = with_host_memory([&] { return ask_once(to, expected, last); });
      if (reply) {
        if (*reply == outcome::owner) release();
        // Else the group has not moved, or the destination has never had the task.
        if (*reply == outcome::refused) group_ && !group_is_committed_ ? take_back() : refused();
        return;
      }
      out_.failure = reply.error();
      if (last) return;
      std::this_thread::sleep_for(delay);
    }
  }

  // The group's decision first, without which nobody commits. `last`: aborts a group that has none.
  result<outcome> ask_once(transport &to, std::string_view certificate, bool last) {
    if (group_ && !group_is_committed_) {
      STILLMAP_ASSIGN_OR_RETURN(
          const group_state now,
          group_->ask(last ? std::optional(group_state::aborted) : std::nullopt));
      if (now == group_state::aborted) return outcome::refused;
      if (now != group_state::committed) {
        return make_error(errc::busy, "the group is not decided yet");
      }
      group_committed();
    }
    return ask_outcome(to, query(), certificate, options_.timeout);
  }

  // The destination owns the task.
  void release() noexcept {
    out_.owner = owner::destination;
    out_.failure.reset();
    out_.epoch = ++mine_.epoch;
    if (stopped_at_ != clock::time_point()) out_.downtime = since(stopped_at_);
    reached(step::ownership_confirmed);
    mine_.state = ownership::released;
    mine_.group = {};
    left_behind_ = false;
    // If the record cannot be written, `intent` stays on disk, and resolve() finds the same
    // outcome.
    if (const status s = record_->write(mine_); !s) report_background_error(s.error());
    record_.reset();
    connections_.reset();
    if (memory_) unmap();
    reached(step::released);
  }

  // The addresses stay reserved by their owners, with nothing mapped.
  void unmap() noexcept {
    std::vector<std::shared_ptr<page_pool>> pools;
    report_if_failed(with_host_memory([&]() -> status {
      for (const page_ptr &p : memory_->memory().pages) {
        if (std::find(pools.begin(), pools.end(), p.pool()) != pools.end()) continue;
        pools.push_back(p.pool());
      }
      return {};
    }));
    if (const status s = checkpoint::detach_pages(device_, memory_->memory()); !s) {
      report_background_error(s.error());
      out_.unmapped = false;
    }
    memory_.reset();
    for (const auto &pool : pools) {
      const auto trimmed = with_host_memory([&] { return pool->trim(); });
      if (!trimmed) report_background_error(trimmed.error());
    }
  }

  // The source keeps the task, unless out_ says otherwise.
  void keep(const error &why) noexcept {
    if (out_.owner != owner::source) return;
    if (connections_) connections_->discard();
    connections_.reset();
    memory_.reset();
    record_.reset();
    out_.failure = why;
    if (left_behind_) {
      out_.owner = owner::in_doubt;
      return;
    }
    if (throttled_) options_.throttle(0);
    throttled_ = false;
    if (stopped_ && options_.resume) options_.resume();
    stopped_ = false;
    if (group_) group_->abort();
  }

  // Without the peer where the host has no memory for its name: the outcome matters more.
  sent_memory outcome_now() const noexcept {
    sent_memory out = out_;
    try {
      out.to = to_;
    } catch (const std::bad_alloc &) {
      out.to = {};
    }
    return out;
  }

  void reached(step s) {
    reporter_.update([&](progress &p) { p.bytes = out_.bytes; });
    reporter_.reached(s);
  }

  const device device_;
  const std::vector<std::string> tags_;
  send_options options_;
  std::optional<record_file> record_;
  record mine_;  // as last read or written
  std::optional<source_memory> memory_;
  std::optional<source_connections> connections_;
  sent_memory out_;   // without the peer, so that copying it allocates nothing
  peer_identity to_;  // the peer
  std::optional<group_member> group_;
  bool group_is_committed_ = false;
  // The group has moved, and this task's destination never had it: it must not run here.
  bool left_behind_ = false;
  group_reference left_by_;  // the group, while a task that it has left behind is sent again
  bool stopped_ = false, throttled_ = false;
  clock::time_point began_, stopped_at_;
  progress_reporter reporter_{options_.on_progress};
};

sender::sender(const device &d, std::span<const std::string> tags, send_options options)
    : core_(std::make_unique<core>(d, tags, std::move(options))) {}
sender::sender(sender &&) noexcept = default;
sender::~sender() = default;
sent_memory sender::send(transport &to) {
  const operation_scope scope("migration::send");
  return core_->send(to);
}
sent_memory sender::resolve(transport &to) {
  const operation_scope scope("migration::resolve");
  return core_->resolve(to);
}
progress sender::now() const {
  return core_->now();
}

}  // namespace stillmap::migration
