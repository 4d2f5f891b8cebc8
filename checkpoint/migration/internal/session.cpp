#include "stillmap/checkpoint/migration/internal/session.h"

#include <algorithm>

#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/migration/internal/inbound.h"

namespace stillmap::migration {
namespace {

constexpr const char *op = "migration::receive";
// Between messages a source may take its time; end_if_silent() has an eye on it.
constexpr patience for_good = std::chrono::hours(24 * 365);

}  // namespace

session::session(const device &d, const receive_options &how, const hello &h, peer from,
                 record_file r, session_id id)
    : device_(d),
      how_(how),
      hello_(h),
      from_(std::move(from)),
      id_(id),
      memory_(d, h.chunk_bytes, how.most_bytes),
      record_(std::move(r)) {
  moved();
}

result<std::shared_ptr<session>> session::create(const device &d, const receive_options &how,
                                                 const hello &h, peer from) {
  if (!d.capabilities().vmm) {
    return make_error(errc::not_supported, op, "this device cannot map pages at addresses");
  }
  if (h.page_bytes % d.capabilities().page_bytes != 0) {
    return make_error(errc::not_supported, op, "pages of this size cannot be made here",
                  h.page_bytes, d.capabilities().page_bytes);
  }
  auto file = record_file::open(how.records, h.task);
  if (!file) return tl::unexpected(file.error());
  const auto before = file->read();
  if (!before) return tl::unexpected(before.error());
  if (*before) {
    const record &r = **before;
    const bool here = r.state == ownership::owner || r.state == ownership::running;
    if (r.state == ownership::intent) {
      return make_error(errc::busy, op, "it is not known yet what became of this task's leaving",
                    h.epoch, r.epoch);
    }
    if (here ? h.epoch <= r.epoch : h.epoch < r.epoch) {
      return make_error(errc::busy, op, "this machine's record of the task is newer", h.epoch,
                    r.epoch);
    }
  }
  const auto id = image::make_id();
  if (!id) return tl::unexpected(id.error().why);
  return std::shared_ptr<session>(
      new session(d, how, h, std::move(from), std::move(*file), session_id{id->bytes}));
}

status session::say(kind what, std::span<const std::byte> body, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (talking_ == nullptr || state_ == state::dead) {
    return make_error(errc::busy, op, "nobody listens any more");
  }
  return send(*talking_, what, body, how_.wait, number);
}

status session::talk(channel &with) {
  {
    const std::lock_guard lock(mutex_);
    talking_ = &with;
  }
  reached(step::accepted);
  status s = say(kind::welcome, encode(id_), 0);
  if (s) s = listen(with);
  if (!s) {
    bool tell = false;
    {
      const std::lock_guard lock(mutex_);
      tell = state_ == state::copying;
    }
    if (tell) (void)say(kind::refusal, checkpoint::encode(s.error()), 0);
  }
  std::unique_lock lock(mutex_);
  talking_ = nullptr;
  if (state_ == state::waiting) return s;  // by another channel, perhaps
  if (state_ == state::copying) state_ = state::dead;
  for (channel *const c : carrying_) c->cut();
  changed_.wait(lock, [this] { return carrying_.empty(); });
  return s;
}

// Until there is nothing more to say.
status session::listen(channel &with) {
  for (;;) {
    auto m =
        receive(with, std::max<std::uint64_t>(checkpoint::largest_layout, largest_table), for_good);
    moved();
    if (!m) return tl::unexpected(m.error());
    switch (m->head.what) {
      case kind::layout: {
        auto l = decode_layout_message(m->body);
        if (!l) return tl::unexpected(l.error());
        if (status s = memory_.prepare(std::move(*l)); !s) return s;
        reached(step::reserved);
        if (status s = say(kind::prepared, {}, 0); !s) return s;
        break;
      }
      case kind::seal: {
        const auto sealed = decode_digests(m->body);
        if (!sealed) return tl::unexpected(sealed.error());
        reached(step::sealed_here);
        const auto bad = memory_.compare(*sealed);
        if (!bad) return tl::unexpected(bad.error());
        if (bad->empty()) {
          const std::lock_guard lock(mutex_);
          if (state_ != state::copying && state_ != state::waiting) {
            return make_error(errc::corrupt, op, "it is too late to say what it should be");
          }
          state_ = state::waiting;
          contents_ = image::digest_of(m->body);
        }
        if (bad->empty()) reached(step::waiting);
        if (status s = say(kind::verified, encode(*bad), 0); !s) return s;
        break;
      }
      case kind::commit: {
        const auto q = decode_question(m->body);
        if (!q) return tl::unexpected(q.error());
        reached(step::commit_received);
        if (status s = commit(*q); !s) return s;
        if (status s = say(kind::owner, {}, 0); !s) return s;
        reached(step::said_owner);
        return {};
      }
      case kind::discard: {
        const std::lock_guard lock(mutex_);
        if (state_ == state::waiting) state_ = state::copying;
        return make_error(errc::busy, op, "the source keeps it");
      }
      default:
        return make_error(errc::corrupt, op, "the source says something else than it should",
                      static_cast<std::uint64_t>(m->head.what));
    }
  }
}

status session::commit(const question &q) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == state::owned || state_ == state::delivered) return {};  // said twice
    if (state_ != state::waiting || q.session != id_ || q.task != hello_.task ||
        q.epoch != hello_.epoch + 1) {
      return make_error(errc::corrupt, op, "it is not time for this word, or it is about another",
                    q.epoch, hello_.epoch + 1);
    }
    record r{hello_.task, hello_.epoch + 1, ownership::owner, id_, from_.where + ' ' + from_.name,
             contents_};
    if (status s = record_->write(r); !s) {
      // It may be on the disk all the same. Nobody may think so who asks.
      r.state = ownership::refused;
      (void)record_->write(r);
      state_ = state::dead;
      return s;
    }
    state_ = state::owned;
  }
  reached(step::owner_recorded);
  return {};
}

standing session::answer() {
  const std::lock_guard lock(mutex_);
  switch (state_) {
    case state::owned:
    case state::delivered:
      return standing::owns;
    case state::waiting:
      return standing::waiting;
    case state::copying:
    case state::dead:
      break;
  }
  state_ = state::dead;  // for good: it has been said
  if (talking_ != nullptr) talking_->cut();
  return standing::never;
}

status session::carry(channel &from) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == state::dead || carrying_.size() >= hello_.channels || !memory_.prepared()) {
      return make_error(errc::corrupt, op, "no channel is waited for", carrying_.size(),
                    hello_.channels);
    }
    carrying_.push_back(&from);
  }
  const status s = bring(from);
  // What is missing never comes. Where it was not the link, the source may want to know why.
  bool tell = false;
  {
    const std::lock_guard lock(mutex_);
    tell = state_ == state::copying;
  }
  if (tell) (void)say(kind::refusal, checkpoint::encode(s.error()), 0);
  const std::lock_guard lock(mutex_);
  carrying_.erase(std::find(carrying_.begin(), carrying_.end(), &from));
  if (state_ == state::copying && talking_ != nullptr) talking_->cut();
  changed_.notify_all();
  return s;
}

// Until it is cut.
status session::bring(channel &from) {
  auto by = inbound::create(device_, memory_, hello_.chunk_bytes, how_.read_back);
  if (!by) return tl::unexpected(by.error());
  if (status s = send(from, kind::welcome, {}, how_.wait); !s) return s;
  for (;;) {
    std::byte head[header::bytes];
    if (status s = from.receive(head, for_good); !s) return s;
    moved();
    const auto h = decode_header(head);
    if (!h) return tl::unexpected(h.error());
    if (h->what != kind::mark || h->body != 0) {
      if (status s = by->take(from, *h, how_.wait); !s) return s;
      continue;
    }
    const auto bad = by->through();
    if (!bad) return tl::unexpected(bad.error());
    if (status s = round_over(*bad, h->number); !s) return s;
  }
}

// The last channel that is through with a round tells.
status session::round_over(const std::vector<std::uint64_t> &bad, std::uint64_t round) {
  std::vector<std::uint64_t> all;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == state::waiting) state_ = state::copying;
    bad_.insert(bad_.end(), bad.begin(), bad.end());
    if (++through_ < hello_.channels) return {};
    through_ = 0;
    all.swap(bad_);
  }
  reached(step::round_landed);
  return say(kind::landed, encode(all), round);
}

bool session::alive() const {
  const std::lock_guard lock(mutex_);
  return state_ == state::copying || state_ == state::waiting;
}

bool session::owned() const {
  const std::lock_guard lock(mutex_);
  return state_ == state::owned;
}

void session::end() {
  const std::lock_guard lock(mutex_);
  if (state_ == state::copying || state_ == state::waiting) state_ = state::dead;
  if (talking_ != nullptr) talking_->cut();
  for (channel *const c : carrying_) c->cut();
}

void session::end_if_silent() {
  const auto silent = clock::now() - clock::time_point(clock::duration(last_moved_.load()));
  if (alive() && silent > how_.settle) end();
}

result<arrived_memory> session::deliver() {
  const std::lock_guard lock(mutex_);
  if (status s = record_->write({hello_.task, hello_.epoch + 1, ownership::running, id_,
                                 from_.where + ' ' + from_.name, contents_});
      !s) {
    return tl::unexpected(s.error());
  }
  reached(step::running_recorded);
  state_ = state::delivered;
  return arrived_memory{memory_.take(), hello_.task, hello_.epoch + 1, from_, std::move(*record_)};
}

}  // namespace stillmap::migration
