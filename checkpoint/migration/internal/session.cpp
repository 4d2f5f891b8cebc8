#include "stillmap/checkpoint/migration/internal/session.h"

#include <algorithm>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/migration/internal/chunk_receiver.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

// Between messages a source may be silent; cancel_if_silent() limits that.
constexpr std::chrono::milliseconds no_timeout = std::chrono::hours(24 * 365);
// Leaves room for every change of owner that there can be.
constexpr std::uint64_t max_epoch = std::uint64_t{1} << 62;

// Errors: busy (the task of this epoch cannot come here), corrupt.
status check_epoch(const record &before, std::uint64_t epoch) {
  if (epoch == 0 || epoch > max_epoch) {
    return make_error(errc::corrupt, "the task's epoch is out of range", epoch, max_epoch);
  }
  if (before.state == ownership::intent) {
    return make_error(errc::busy,
                      "this machine's own transfer of the task is in doubt: resolve it first",
                      epoch, before.epoch);
  }
  // A source that was refused under an epoch never uses it again.
  std::uint64_t newest = before.epoch;
  for (const incoming_transfer &t : before.transfers) {
    if (t.state == transfer_state::refused) newest = std::max(newest, t.epoch);
  }
  const bool here = before.state == ownership::owner || before.state == ownership::running;
  if (here ? epoch <= newest : epoch < newest) {
    return make_error(errc::busy, "this machine's record of the task has a newer epoch", epoch,
                      newest);
  }
  return {};
}

}  // namespace

session::session(const device &d, const hello &h, peer_identity from, record_file file,
                 record before, session_id id, const receive_options &options)
    : device_(d),
      options_(options),
      hello_(h),
      from_(std::move(from)),
      id_(id),
      memory_(d, h.chunk_bytes, options.max_bytes),
      file_(std::move(file)),
      record_(std::move(before)) {
  touch();
}

result<std::shared_ptr<session>> session::create(const device &d, const hello &h,
                                                 peer_identity from,
                                                 const receive_options &options) {
  if (!d.capabilities().vmm) {
    return make_error(errc::not_supported, "the device cannot map pages at fixed addresses");
  }
  if (h.page_bytes % d.capabilities().page_bytes != 0) {
    return make_error(errc::not_supported,
                      "the source's page size is not a multiple of this device's", h.page_bytes,
                      d.capabilities().page_bytes, error_unit::bytes);
  }
  STILLMAP_ASSIGN_OR_RETURN(auto file, record_file::open(options.records, h.task, *options.files));
  STILLMAP_ASSIGN_OR_RETURN(std::optional<record> before, file.read());
  if (!before) before = record{h.task, 0, ownership::none, {}, {}, {}};
  STILLMAP_RETURN_IF_ERROR(check_epoch(*before, h.epoch));
  // This process holds the record, so the one that received an earlier task has ended.
  const incoming_transfer *const last = before->find(before->session);
  if (last != nullptr && before->undelivered(*last)) before->refuse(before->session, last->epoch);
  STILLMAP_ASSIGN_OR_RETURN(const auto id, image::make_id());
  return std::shared_ptr<session>(new session(d, h, std::move(from), std::move(file),
                                              std::move(*before), session_id{id.bytes}, options));
}

status session::record_offer() {
  const lock_guard lock(mutex_);
  if (offered_) return {};
  record r = record_;
  if (r.state == ownership::none) {
    r.session = id_;
    r.peer = from_.address + ' ' + from_.name;
  }
  r.set_transfer(id_, hello_.epoch + 1, transfer_state::offered);
  STILLMAP_RETURN_IF_ERROR(file_->write(r));
  record_ = std::move(r);
  offered_ = true;
  return {};
}

record session::make_record(ownership o) const {
  record r = record_;
  r.epoch = hello_.epoch + 1;
  r.state = o;
  r.session = id_;
  r.peer = from_.address + ' ' + from_.name;
  r.contents = contents_;
  r.certificate.clear();
  r.group = {};
  r.set_transfer(id_, r.epoch, transfer_state::committed);
  return r;
}

record session::make_refusal() const {
  record r = record_;
  r.refuse(id_, hello_.epoch + 1);
  return r;
}

status session::send_control(kind what, std::span<const std::byte> body, std::uint64_t number) {
  const lock_guard lock(mutex_);
  if (control_ == nullptr || state_ == state::dead) {
    return make_error(errc::busy, "the control channel is closed");
  }
  return send(*control_, what, body, options_.timeout, number);
}

// Best effort: the session fails whether the source learns why or not.
void session::refuse(const error &why) noexcept {
  {
    const lock_guard lock(mutex_);
    if (state_ != state::copying) return;
  }
  (void)with_host_memory([&] { return send_control(kind::refusal, checkpoint::encode(why)); });
}

status session::serve_control(channel &control) noexcept {
  {
    const lock_guard lock(mutex_);
    control_ = &control;
  }
  reached(step::accepted);
  const status s = with_host_memory([&]() -> status {
    welcome_message welcome{id_, {}};
    if (const auto &a = options_.data_acceptor) welcome.data = {a->transport_name(), a->address()};
    STILLMAP_RETURN_IF_ERROR(send_control(kind::welcome, encode(welcome)));
    return receive_control(control);
  });
  if (!s) refuse(s.error());
  unique_lock lock(mutex_);
  control_ = nullptr;
  if (state_ == state::awaiting_commit) return s;  // the commit may arrive on another channel
  if (state_ == state::copying) state_ = state::dead;
  for (channel *const c : data_) c->shutdown();
  changed_.wait(lock, [this]() STILLMAP_REQUIRES(mutex_) { return data_.empty(); });
  return data_failure_ ? s : data_failure_;
}

// Returns after a commit.
status session::receive_control(channel &control) {
  for (;;) {
    auto m = receive(control, std::max<std::uint64_t>(checkpoint::largest_layout, max_table_bytes),
                     no_timeout);
    touch();
    if (!m) return tl::unexpected(m.error());
    switch (m->head.what) {
      case kind::layout: {
        STILLMAP_ASSIGN_OR_RETURN(auto l, decode_layout_message(m->body));
        STILLMAP_RETURN_IF_ERROR(unseal());
        STILLMAP_RETURN_IF_ERROR(memory_.prepare(std::move(l)));
        STILLMAP_RETURN_IF_ERROR(record_offer());
        reached(step::reserved);
        STILLMAP_RETURN_IF_ERROR(send_control(kind::prepared));
        break;
      }
      case kind::seal: {
        STILLMAP_ASSIGN_OR_RETURN(const auto sealed, decode_digests(m->body));
        reached(step::seal_received);
        STILLMAP_ASSIGN_OR_RETURN(const auto different, memory_.compare(sealed));
        if (different.empty()) {
          const lock_guard lock(mutex_);
          if (state_ != state::copying && state_ != state::awaiting_commit) {
            return make_error(errc::corrupt, "a seal arrived after the outcome was decided");
          }
          state_ = state::awaiting_commit;
          contents_ = image::digest_of(m->body);
        }
        if (different.empty()) reached(step::awaiting_commit);
        STILLMAP_RETURN_IF_ERROR(send_control(kind::verified, encode(different)));
        break;
      }
      case kind::commit: {
        STILLMAP_ASSIGN_OR_RETURN(const outcome_query q, decode_outcome_query(m->body));
        reached(step::commit_received);
        STILLMAP_RETURN_IF_ERROR(commit(q));
        STILLMAP_RETURN_IF_ERROR(send_control(kind::owner));
        reached(step::ownership_sent);
        return {};
      }
      case kind::discard: {
        const lock_guard lock(mutex_);
        if (state_ == state::awaiting_commit) state_ = state::copying;
        return make_error(errc::operation_canceled, "the source cancelled the migration");
      }
      default:
        return make_error(errc::corrupt, "unexpected message on the control channel",
                          static_cast<std::uint64_t>(m->head.what));
    }
  }
}

// From here to the next seal no commit passes memory_ on: its layout and contents may change.
status session::unseal() {
  const lock_guard lock(mutex_);
  if (state_ != state::copying && state_ != state::awaiting_commit) {
    return make_error(errc::corrupt, "a layout or contents arrived after the outcome was decided");
  }
  state_ = state::copying;
  return {};
}

status session::commit(const outcome_query &q) noexcept {
  {
    const lock_guard lock(mutex_);
    if (state_ == state::owned || state_ == state::delivered) return {};  // a repeated commit
    if (state_ != state::awaiting_commit || q.session != id_ || q.task != hello_.task ||
        q.epoch != hello_.epoch + 1) {
      return make_error(errc::corrupt, "a commit of another session, or before the seal", q.epoch,
                        hello_.epoch + 1);
    }
    STILLMAP_RETURN_IF_ERROR(memory_.close_rounds());
    const status s = with_host_memory(
        [&]() STILLMAP_REQUIRES(mutex_) { return file_->write(make_record(ownership::owner)); });
    if (!s) {
      // The record may be on disk all the same, so it is replaced by a refusal. If that fails as
      // well, receiver::core::outcome_on_record() writes it when the source asks.
      (void)with_host_memory(
          [&]() STILLMAP_REQUIRES(mutex_) { return file_->write(make_refusal()); });
      state_ = state::dead;
      return s;
    }
    state_ = state::owned;
  }
  reached(step::ownership_recorded);
  return {};
}

result<outcome> session::answer_query() {
  const lock_guard lock(mutex_);
  switch (state_) {
    case state::owned:
      STILLMAP_RETURN_IF_ERROR(file_->confirm());
      return outcome::owner;
    case state::delivered:
      return outcome::owner;
    case state::awaiting_commit:
      return outcome::awaiting_commit;
    case state::copying:
    case state::dead:
      break;
  }
  state_ = state::dead;
  if (control_ != nullptr) control_->shutdown();
  return outcome::refused;
}

status session::serve_data(channel &data) {
  {
    const lock_guard lock(mutex_);
    if (state_ == state::dead || data_.size() >= hello_.channels || !memory_.prepared()) {
      return make_error(errc::corrupt, "no further data channel is expected", data_.size(),
                        hello_.channels, error_unit::items);
    }
    data_.push_back(&data);
  }
  const status s = with_host_memory([&] { return receive_data(data); });
  refuse(s.error());  // the session fails without this channel
  const lock_guard lock(mutex_);
  data_.erase(std::find(data_.begin(), data_.end(), &data));
  if (state_ == state::copying && control_ != nullptr) {
    // If the connection broke, the control channel knows why, or breaks as well.
    const bool broken = s.error().code.category() == std::system_category();
    if (data_failure_ && !broken) data_failure_ = s;
    control_->shutdown();
  }
  changed_.notify_all();
  return s;
}

// Returns when the channel fails or is closed.
status session::receive_data(channel &data) {
  STILLMAP_ASSIGN_OR_RETURN(
      auto chunks, chunk_receiver::create(device_, memory_, hello_.chunk_bytes, hello_.digests,
                                          options_.read_back));
  STILLMAP_RETURN_IF_ERROR(send(data, kind::welcome, {}, options_.timeout));
  for (;;) {
    std::byte head[header::bytes];
    STILLMAP_RETURN_IF_ERROR(data.receive(head, no_timeout));
    touch();
    STILLMAP_ASSIGN_OR_RETURN(const header h, decode_header(head));
    if (h.what != kind::round_end || h.body != 0) {
      if (!chunks.in_round()) STILLMAP_RETURN_IF_ERROR(unseal());
      STILLMAP_RETURN_IF_ERROR(chunks.take(data, h, options_.timeout));
      continue;
    }
    STILLMAP_ASSIGN_OR_RETURN(const auto damaged, chunks.end_round());
    STILLMAP_RETURN_IF_ERROR(end_round(damaged, h.number));
  }
}

status session::end_round(const std::vector<std::uint64_t> &damaged, std::uint64_t round) {
  std::vector<std::uint64_t> all;
  {
    const lock_guard lock(mutex_);
    if (state_ == state::awaiting_commit) state_ = state::copying;
    damaged_.insert(damaged_.end(), damaged.begin(), damaged.end());
    if (++channels_done_ < hello_.channels) return {};
    channels_done_ = 0;
    all.swap(damaged_);
  }
  reached(step::round_received);
  return send_control(kind::round_received, encode(all), round);
}

bool session::alive() const {
  const lock_guard lock(mutex_);
  return state_ == state::copying || state_ == state::awaiting_commit;
}

bool session::owned() const {
  const lock_guard lock(mutex_);
  return state_ == state::owned;
}

void session::cancel() {
  const lock_guard lock(mutex_);
  if (state_ == state::copying || state_ == state::awaiting_commit) state_ = state::dead;
  if (control_ != nullptr) control_->shutdown();
  for (channel *const c : data_) c->shutdown();
}

void session::cancel_if_silent() {
  const auto silent = clock::now() - clock::time_point(clock::duration(last_message_.load()));
  if (alive() && silent > options_.resolve_timeout) cancel();
}

result<received_memory> session::deliver() {
  std::optional<received_memory> out;
  {
    const lock_guard lock(mutex_);
    peer_identity from = from_;
    if (const status s = file_->write(make_record(ownership::running)); !s) {
      const auto found = file_->read();
      const incoming_transfer *const mine = found && *found ? (*found)->find(id_) : nullptr;
      if (mine != nullptr && mine->state == transfer_state::refused) state_ = state::dead;
      return tl::unexpected(s.error());
    }
    // Nothing here may fail: the record says that the task runs.
    state_ = state::delivered;
    out.emplace(received_memory{memory_.take(), hello_.task, hello_.epoch + 1, std::move(from),
                                std::move(*file_)});
  }
  reached(step::running_recorded);
  return std::move(*out);
}

}  // namespace stillmap::migration
