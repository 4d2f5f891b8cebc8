#include "stillmap/checkpoint/control/internal/executor.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/address_space.h"

namespace stillmap::control {
namespace {

using clock = std::chrono::steady_clock;
using checkpoint::suspended_tag;

tl::unexpected<failure> fail_image(const image::failure &f) {
  failure out(f.why);
  out.text = f.message();
  return tl::unexpected<failure>(std::move(out));
}

}  // namespace

const char *name_of(request_kind k) noexcept {
  static constexpr const char *names[] = {"none", "status",  "suspend", "resume", "snapshot",
                                          "give", "migrate", "abort",   "settle"};
  return names[static_cast<std::size_t>(k)];
}

operations::turn::~turn() {
  const std::lock_guard lock(of_.mutex_);
  of_.job_ = {};
  ++of_.jobs_ended_;
  of_.ended_well_ = well_;
  of_.changed_.notify_all();
}

std::unique_ptr<operations::turn> operations::take_turn(request_kind k,
                                                        const std::stop_token &stop) {
  {
    const std::lock_guard lock(mutex_);
    if (job_.what != request_kind::none) return nullptr;
    job_ = {};
    job_.what = k;
    abort_ = {};
    begun_ = clock::now();
  }
  return std::make_unique<turn>(*this, stop);
}

job_status operations::job() const {
  const std::lock_guard lock(mutex_);
  job_status out = job_;
  if (out.what != request_kind::none) {
    out.since = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - begun_);
  }
  return out;
}

failure operations::busy() const {
  const job_status j = job();
  failure f(error{make_error_code(errc::busy), "control::server",
                  "another request is being carried out", static_cast<std::uint64_t>(j.what)});
  f.text = std::string("control::server: another request is being carried out (") +
           name_of(j.what) + ", for " + std::to_string(j.since.count()) + " ms" +
           (j.undecided ? ", undecided: ask for settle" : "") + "): busy";
  return f;
}

process_status operations::now() const {
  process_status s;
  s.pid = ::getpid();
  s.device = device_.name();
  s.ordinal = device_.ordinal();
  s.uuid = device_.uuid();
  s.page_bytes = device_.capabilities().page_bytes;
  s.memory_total = device_.total_memory().bytes();
  if (const auto memory = device_.memory()) s.memory_free = memory->free.bytes();
  std::map<std::string, tag_status> tags;
  for (const block_record &b : device_.space().blocks()) {
    tag_status &t = tags[b.tag];
    t.blocks += 1;
    t.reserved_bytes += b.range.bytes;
    t.mapped_bytes += b.mapped_bytes;
    t.suspended_bytes += b.suspended_bytes;
  }
  {
    const std::lock_guard lock(mutex_);
    for (auto &[tag, t] : tags) {
      t.tag = tag;
      const auto kept = kept_.find(tag);
      if (kept != kept_.end() && t.suspended_bytes != 0) t.kept_in = kept->second;
      s.tags.push_back(std::move(t));
    }
  }
  s.job = job();
  return s;
}

// What would be refused anyway, before the task is brought to a stop for it.
outcome<void> operations::check_live(tags_view tags, const char *op) const {
  const auto refused = [&](errc c, const char *why, std::size_t which, std::uint64_t value,
                           std::uint64_t limit) {
    failure f(error{make_error_code(c), op, why, value, limit});
    f.text = std::string(op) + ": '" + tags[which] + "': " + why + ": " + f.code.message();
    return tl::unexpected<failure>(std::move(f));
  };
  const std::vector<block_record> blocks = device_.space().blocks();
  for (std::size_t i = 0; i < tags.size(); ++i) {
    bool found = false;
    for (const block_record &b : blocks) {
      if (b.tag != tags[i]) continue;
      found = true;
      if (b.suspended_bytes == 0) continue;
      return refused(errc::busy, "memory of this tag is suspended, or was given away", i,
                     b.range.begin.value(), 0);
    }
    if (!found) {
      return refused(errc::invalid_argument, "nothing has this tag", i, i, tags.size());
    }
  }
  return {};
}

status operations::quiesce(tags_view tags, const std::stop_token &stop) const {
  if (stop.stop_requested()) {
    return make_error(errc::busy, "control::server", "it was given up, or the server goes");
  }
  return how_.task.quiesce ? how_.task.quiesce(tags, stop) : status{};
}

void operations::go_on(tags_view tags) const {
  if (how_.task.go_on) how_.task.go_on(tags);
}

result<checkpoint::suspender *> operations::sleeper() {
  if (how_.suspender) return how_.suspender.get();
  if (!own_) {
    auto made = checkpoint::suspender::create(device_);
    if (!made) return tl::unexpected(made.error());
    own_ = std::move(*made);
  }
  return own_.get();
}

outcome<suspended_tag> operations::suspend(const suspend_request &r, std::stop_token stop) {
  const auto mine = take_turn(request_kind::suspend);
  if (!mine) return tl::unexpected<failure>(busy());
  const tags_view tags(&r.tag, 1);
  if (auto s = check_live(tags, "control::suspend"); !s) return tl::unexpected(s.error());
  const auto by = sleeper();
  if (!by) return fail(by.error());
  if (status s = quiesce(tags, stop); !s) return fail(s.error());
  checkpoint::suspend_options how;
  how.contents = r.contents;
  how.directory = r.directory;
  if (how_.idle) how.idle = how_.idle();
  auto done = (*by)->suspend(r.tag, how);
  if (!done) {
    go_on(tags);
    return fail(done.error());
  }
  const std::lock_guard lock(mutex_);
  kept_[r.tag] = r.contents;
  return std::move(*done);
}

outcome<suspended_tag> operations::resume(const std::string &tag) {
  const auto mine = take_turn(request_kind::resume);
  if (!mine) return tl::unexpected<failure>(busy());
  const auto by = sleeper();
  if (!by) return fail(by.error());
  auto done = (*by)->resume(tag);
  if (!done) return fail(done.error());
  {
    const std::lock_guard lock(mutex_);
    kept_.erase(tag);
  }
  go_on({&tag, 1});
  return std::move(*done);
}

outcome<image::written> operations::snapshot(
    const snapshot_request &r, std::stop_token stop,
    const std::function<bool(const snapshot_progress &)> &told) {
  const auto mine = take_turn(request_kind::snapshot, stop);
  if (!mine) return tl::unexpected<failure>(busy());
  const std::stop_token given_up = abort_.get_token();
  if (auto s = check_live(r.tags, "control::snapshot"); !s) return tl::unexpected(s.error());
  snapshot::save_options how;
  how.image.replace = r.replace;
  how.image.compress = r.compress;
  how.image.verify = r.verify;
  if (!r.parent.empty()) {
    auto parent = image::reader::open(r.parent);
    if (!parent) return fail_image(parent.error());
    how.image.parent = std::move(*parent);
  }
  how.image.on_progress = [&](const image::write_progress &p) {
    {
      const std::lock_guard lock(mutex_);
      job_.bytes = p.bytes;
      job_.of_bytes = p.of_bytes;
    }
    return !given_up.stop_requested() &&
           told({p.phase == image::write_phase::verifying, p.bytes, p.of_bytes, p.stored});
  };
  if (status s = quiesce(r.tags, given_up); !s) return fail(s.error());
  if (how_.idle) how.idle = how_.idle();
  auto saved = snapshot::save(device_, r.tags, r.path, how);
  go_on(r.tags);
  if (!saved) return fail_image(saved.error());
  mine->went_well();
  return std::move(*saved);
}

outcome<handoff::given_memory> operations::give(const give_request &r, std::stop_token stop) {
  const auto mine = take_turn(request_kind::give);
  if (!mine) return tl::unexpected<failure>(busy());
  if (auto s = check_live(r.tags, "control::give"); !s) return tl::unexpected(s.error());
  auto to = handoff::connection::connect(r.to, r.wait, stop);
  if (!to) return fail(to.error());
  bool stopped = false;
  handoff::handoff_options how;
  how.wait = r.wait;
  how.allow = how_.allow;
  how.cancel = stop;
  how.idle = how_.idle;
  how.quiesce = [&] {
    status s = quiesce(r.tags, stop);
    stopped = s.has_value();
    return s;
  };
  auto given = handoff::give(device_, *to, r.tags, how);
  if (!given) {
    if (stopped) go_on(r.tags);
    return fail(given.error());
  }
  if (how_.task.given_away) how_.task.given_away(r.tags);
  return std::move(*given);
}

}  // namespace stillmap::control
