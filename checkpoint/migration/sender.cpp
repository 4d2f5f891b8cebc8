#include <algorithm>
#include <thread>

#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/image/image_set.h"
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

  sent_memory resolve(transport &to) {
    const auto fail = [this](const error &e) {
      out_.failure = e;
      return outcome_now();
    };
    if (!record_) {
      const status s = with_host_memory([&] { return open_record(); });
      if (!s) return fail(s.error());
    }
    if (mine_.state != ownership::intent) {
      out_.owner = mine_.state == ownership::released ? owner::destination : owner::source;
      return fail(make_error(errc::invalid_argument,
                             "the ownership of this task is not in doubt (its epoch)", mine_.epoch)
                      .value());
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
    STILLMAP_RETURN_IF_ERROR(connections_->open_channels(to));
    reached(step::channels_open);
    precopy copy(options_, *memory_, *connections_, reporter_, out_);
    const status copied = with_host_memory([&] { return copy.copy_while_running(); });
    throttled_ = copy.throttled();
    if (!copied) return copied;
    reporter_.stopping();
    if (options_.cancel.stop_requested()) {
      return make_error(errc::operation_canceled, "stop requested");
    }
    stopped_at_ = clock::now();
    if (options_.quiesce) {
      stopped_ = true;
      STILLMAP_RETURN_IF_ERROR(options_.quiesce());
    }
    const auto idle = options_.idle ? std::optional<fence>(options_.idle()) : std::nullopt;
    STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(device_, idle));
    reached(step::quiesced);
    return copy.copy_rest();
  }

  // The destination has all contents, and awaits the commit.
  status transfer_ownership(transport &to) {
    record next = mine_;
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
      const auto reply =
          with_host_memory([&] { return ask_outcome(to, query(), expected, options_.timeout); });
      if (reply && *reply == outcome::owner) {
        release();
        return;
      }
      if (reply) {
        mine_.state = ownership::owner;
        mine_.certificate.clear();
        mine_.epoch += 1 + epochs_of_a_refusal;
        out_.epoch = mine_.epoch;
        out_.owner = owner::source;
        restore_record();
        return;
      }
      out_.failure = reply.error();
      if (clock::now() + delay > until) return;
      std::this_thread::sleep_for(delay);
    }
  }

  // The destination owns the task.
  void release() noexcept {
    out_.owner = owner::destination;
    out_.failure.reset();
    out_.epoch = ++mine_.epoch;
    if (stopped_at_ != clock::time_point()) out_.downtime = since(stopped_at_);
    reached(step::ownership_confirmed);
    mine_.state = ownership::released;
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
    if (throttled_) options_.throttle(0);
    throttled_ = false;
    if (stopped_ && options_.resume) options_.resume();
    stopped_ = false;
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
