#include "stillmap/checkpoint/control/internal/executor.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "stillmap/checkpoint/image/internal/key_file.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::control {
namespace {

using clock = std::chrono::steady_clock;
using checkpoint::suspended_tag;

constexpr const char *executor_op = "control::server";

}  // namespace

const char *name_of(request_kind k) noexcept {
  static constexpr const char *names[] = {"none",    "status",  "suspend", "resume", "snapshot",
                                          "handoff", "migrate", "abort",   "resolve"};
  return names[static_cast<std::size_t>(k)];
}

executor::turn::held::~held() {
  if (!begun) return;
  const std::lock_guard lock(of.mutex_);
  of.job_ = {};
  ++of.jobs_ended_;
  of.last_succeeded_ = succeeded;
  of.changed_.notify_all();
}

result<std::unique_ptr<executor::turn>> executor::take_turn(request_kind k,
                                                            const std::stop_token &stop) {
  // What is allocated comes before the turn is taken: nobody else would give it back.
  auto out = std::make_unique<turn>(*this);
  std::stop_source cancel;
  {
    const std::lock_guard lock(mutex_);
    if (job_.request != request_kind::none) return busy_locked();
    job_ = {};
    job_.request = k;
    cancel_ = std::move(cancel);
    begun_ = clock::now();
  }
  out->begin(stop);
  return out;
}

job_status executor::job_locked() const {
  job_status out = job_;
  if (out.request != request_kind::none) {
    out.elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - begun_);
  }
  return out;
}

tl::unexpected<error> executor::busy_locked() const {
  const job_status j = job_locked();
  const error e = make_error(errc::busy, executor_op, "another request is being carried out",
                             static_cast<std::uint64_t>(j.request))
                      .value();
  std::string found =
      std::string(name_of(j.request)) + ", for " + std::to_string(j.elapsed.count()) + " ms";
  if (j.in_doubt) found += ", in doubt: resolve it";
  return tl::unexpected(e.with({.found = std::move(found)}));
}

process_status executor::status() const {
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
      const auto store = suspended_stores_.find(tag);
      if (store != suspended_stores_.end() && t.suspended_bytes != 0) t.store = store->second;
      s.tags.push_back(std::move(t));
    }
  }
  const std::lock_guard lock(mutex_);
  s.job = job_locked();
  return s;
}

stillmap::status executor::check_mapped(tags_view tags, const char *op) const {
  const std::vector<block_record> blocks = device_.space().blocks();
  for (const std::string &tag : tags) {
    bool found = false;
    for (const block_record &b : blocks) {
      if (b.tag != tag) continue;
      found = true;
      if (b.suspended_bytes + b.released_bytes == 0) continue;
      return tl::unexpected(make_error(errc::busy, op,
                                       b.suspended_bytes != 0
                                           ? "memory of this tag is suspended"
                                           : "memory of this tag has been released",
                                       b.range.begin.value(), 0, error_unit::address)
                                .value()
                                .about(tag));
    }
    if (!found) {
      return tl::unexpected(
          make_error(errc::invalid_argument, op, "no memory has this tag").value().about(tag));
    }
  }
  return {};
}

stillmap::status executor::quiesce(tags_view tags, const std::stop_token &stop) const {
  if (stop.stop_requested()) {
    return make_error(errc::operation_canceled, executor_op,
                      "the request was cancelled, or the server is being destroyed");
  }
  return options_.task.quiesce ? options_.task.quiesce(tags, stop) : stillmap::status{};
}

void executor::resume_task(tags_view tags) const {
  if (options_.task.resume) options_.task.resume(tags);
}

result<checkpoint::suspender *> executor::get_suspender() {
  if (options_.suspender) return options_.suspender.get();
  if (!own_suspender_) {
    STILLMAP_ASSIGN_OR_RETURN(own_suspender_, checkpoint::suspender::create(device_));
  }
  return own_suspender_.get();
}

result<suspended_tag> executor::suspend(const suspend_request &r, std::stop_token stop) {
  STILLMAP_ASSIGN_OR_RETURN(const auto my_turn, take_turn(request_kind::suspend));
  const tags_view tags(&r.tag, 1);
  STILLMAP_RETURN_IF_ERROR(check_mapped(tags, "control::suspend"));
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::suspender *const suspender, get_suspender());
  checkpoint::suspend_options options;
  options.store = r.store;
  options.directory = r.directory;
  // Allocated before the application is stopped: afterwards nothing may fail without resuming it.
  std::map<std::string, checkpoint::backing_store> entry{{r.tag, r.store}};
  STILLMAP_RETURN_IF_ERROR(quiesce(tags, stop));
  if (options_.idle) options.idle = options_.idle();
  auto done = suspender->suspend(r.tag, options);
  if (!done) {
    resume_task(tags);
    return done;
  }
  const std::lock_guard lock(mutex_);
  suspended_stores_.erase(r.tag);
  suspended_stores_.merge(entry);
  return done;
}

result<suspended_tag> executor::resume(const std::string &tag) {
  STILLMAP_ASSIGN_OR_RETURN(const auto my_turn, take_turn(request_kind::resume));
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::suspender *const suspender, get_suspender());
  auto done = suspender->resume(tag);
  if (!done) return done;
  {
    const std::lock_guard lock(mutex_);
    suspended_stores_.erase(tag);
  }
  resume_task({&tag, 1});
  return done;
}

result<image::written> executor::snapshot(
    const snapshot_request &r, std::stop_token stop,
    const std::function<bool(const snapshot_progress &)> &on_progress) {
  STILLMAP_ASSIGN_OR_RETURN(const auto my_turn, take_turn(request_kind::snapshot, stop));
  std::stop_source cancel = cancel_;
  STILLMAP_RETURN_IF_ERROR(check_mapped(r.tags, "control::snapshot"));
  snapshot::save_options options;
  options.image.replace = r.replace;
  options.image.compress = r.compress;
  options.image.verify = r.verify;
  options.image.cancel = cancel.get_token();
  if (!r.key.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(const auto key,
                              image::read_key(r.key, image::secrecy::owner, "control::snapshot"));
    options.image.key = image::secret_key{key};
  }
  if (!r.sign_with.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(
        const auto key, image::read_key(r.sign_with, image::secrecy::owner, "control::snapshot"));
    options.image.sign_with = image::signing_key{key};
  }
  if (!r.parent.empty()) {
    image::open_options parents;
    parents.key = options.image.key;
    parents.cancel = options.image.cancel;
    STILLMAP_ASSIGN_OR_RETURN(options.image.parent, image::reader::open(r.parent, parents));
  }
  options.image.on_progress = [&](const image::write_progress &p) {
    {
      const std::lock_guard lock(mutex_);
      job_.bytes = p.bytes;
      job_.total_bytes = p.total_bytes;
    }
    const bool verifying = p.phase == image::write_phase::verifying;
    if (!on_progress({verifying, p.bytes, p.total_bytes, p.stored})) cancel.request_stop();
  };
  STILLMAP_RETURN_IF_ERROR(quiesce(r.tags, options.image.cancel));
  if (options_.idle) options.idle = options_.idle();
  auto saved = snapshot::save(device_, r.tags, r.path, options);
  resume_task(r.tags);
  if (saved) my_turn->succeeded();
  return saved;
}

result<handoff::sent_memory> executor::handoff(const handoff_request &r, std::stop_token stop,
                                               std::stop_token waits) {
  STILLMAP_ASSIGN_OR_RETURN(const auto my_turn, take_turn(request_kind::handoff));
  STILLMAP_RETURN_IF_ERROR(check_mapped(r.tags, "control::handoff"));
  STILLMAP_ASSIGN_OR_RETURN(auto to, handoff::connection::connect(r.to, r.timeout, waits));
  bool stopped = false;
  handoff::handoff_options options;
  options.timeout = r.timeout;
  options.allow = options_.allow;
  options.cancel = stop;
  options.idle = options_.idle;
  options.quiesce = [&] {
    stillmap::status s = quiesce(r.tags, stop);
    stopped = s.has_value();
    return s;
  };
  auto sent = handoff::send(device_, to, r.tags, options);
  if (!sent) {
    if (stopped) resume_task(r.tags);
  } else if (options_.task.released) {
    options_.task.released(r.tags);
  }
  return sent;
}

}  // namespace stillmap::control
