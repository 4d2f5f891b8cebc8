#include "stillmap/checkpoint/control/internal/executor.h"

#include <unistd.h>

#include <set>
#include <string_view>
#include <utility>

#include "stillmap/checkpoint/base/key_file.h"
#include "stillmap/checkpoint/common/published_blocks.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::control {
namespace {

using clock = std::chrono::steady_clock;
using checkpoint::suspended_tag;

}  // namespace

const char *name_of(request_kind k) noexcept {
  static constexpr const char *names[] = {"none",    "status",  "suspend", "resume",  "snapshot",
                                          "handoff", "migrate", "abort",   "resolve", "restore"};
  return names[static_cast<std::size_t>(k)];
}

executor::turn::held::~held() {
  if (!begun) return;
  const lock_guard lock(of.mutex_);
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
    const lock_guard lock(mutex_);
    if (job_.request != request_kind::none) return busy_locked();
    job_ = {};
    job_.request = k;
    cancel_ = cancel;
    begun_ = clock::now();
  }
  out->begin(stop, std::move(cancel));
  return out;
}

job_status executor::job_locked() const {
  job_status out = job_;
  if (out.request != request_kind::none) {
    out.elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - begun_);
  }
  return out;
}

job_status executor::job() const {
  const lock_guard lock(mutex_);
  return job_locked();
}

tl::unexpected<error> executor::busy_locked() const {
  const job_status j = job_locked();
  const error e = make_error(errc::busy, "another request is being carried out",
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
    if (checkpoint::find_published(device_, b)) s.published_bytes += b.mapped_bytes;
  }
  if (options_.task.memory) s.memory = options_.task.memory();
  {
    const lock_guard lock(mutex_);
    for (auto &[tag, t] : tags) {
      t.tag = tag;
      const auto store = suspended_stores_.find(tag);
      if (store != suspended_stores_.end() && t.suspended_bytes != 0) t.store = store->second;
      s.tags.push_back(std::move(t));
    }
  }
  const lock_guard lock(mutex_);
  s.job = job_locked();
  return s;
}

result<std::vector<std::string>> executor::tags_for(bool all,
                                                    std::vector<std::string> named) const {
  if (!all) return named;
  std::set<std::string> tags;
  for (const block_record &b : device_.space().blocks()) {
    // What another process owns by now is no memory of this one.
    const bool is_away = b.released_bytes != 0 && b.mapped_bytes + b.suspended_bytes == 0;
    if (!b.tag.empty() && !is_away) tags.insert(b.tag);
  }
  if (tags.empty()) {
    return make_error(errc::invalid_argument, "the process has no memory with a tag");
  }
  return std::vector<std::string>(tags.begin(), tags.end());
}

stillmap::status executor::check_may_release() const {
  if (options_.keeps_memory == nullptr) return {};
  return make_error(errc::not_supported, options_.keeps_memory);
}

stillmap::status executor::check_mapped(tags_view tags) const {
  const std::vector<block_record> blocks = device_.space().blocks();
  // By tag, the first block whose memory is not all there; null: none is.
  std::map<std::string_view, const block_record *> known;
  for (const block_record &b : blocks) {
    const block_record *&missing = known[b.tag];
    if (missing == nullptr && b.suspended_bytes + b.released_bytes != 0) missing = &b;
  }
  for (const std::string &tag : tags) {
    const auto found = known.find(tag);
    if (found == known.end()) {
      return tl::unexpected(
          make_error(errc::invalid_argument, "no memory has this tag").value().about(tag));
    }
    if (found->second == nullptr) continue;
    return tl::unexpected(make_error(errc::busy,
                                     found->second->suspended_bytes != 0
                                         ? "memory of this tag is suspended: resume it first"
                                         : "memory of this tag has been released",
                                     found->second->range.begin.value(), 0, error_unit::address)
                              .value()
                              .about(tag));
  }
  return {};
}

stillmap::status executor::quiesce(tags_view tags, const std::stop_token &stop) const {
  if (stop.stop_requested()) {
    return make_error(errc::operation_canceled,
                      "the request was cancelled, or the server is being destroyed");
  }
  // What OpenSSL loads at its first use, it loads while the application runs: that may need the loader's lock.
  (void)image::digest_of_contents({}, {});
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
  STILLMAP_ASSIGN_OR_RETURN(auto tags, tags_for(r.all, {r.tag}));
  if (r.all) {
    std::set<std::string> mapped;
    for (const block_record &b : device_.space().blocks()) {
      // What is published is freed by nobody's suspension: a holder keeps it.
      const bool is_own = !checkpoint::find_published(device_, b);
      if (b.mapped_bytes != 0 && is_own) mapped.insert(b.tag);
    }
    std::erase_if(tags, [&](const std::string &tag) { return !mapped.contains(tag); });
    if (tags.empty()) {
      return make_error(errc::invalid_argument, "no tag of the process has mapped memory");
    }
  }
  STILLMAP_RETURN_IF_ERROR(check_mapped(tags));
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::suspender *const suspender, get_suspender());
  checkpoint::suspend_options options;
  options.store = r.store;
  options.directory = r.directory;
  // Allocated before the application is stopped: afterwards nothing may fail without resuming it.
  suspended_stores entries;
  for (const std::string &tag : tags) entries.emplace(tag, r.store);
  STILLMAP_RETURN_IF_ERROR(quiesce(tags, stop));
  if (options_.idle) options.idle = options_.idle();
  auto done = suspend_each(tags, options, *suspender, entries);
  if (done && !r.all) done->tag = r.tag;
  return done;
}

// Without a tag in the result. The application has been stopped for all of them, and is resumed for
// those that are not suspended in the end. `entries` are those of suspended_stores_.
result<suspended_tag> executor::suspend_each(tags_view tags,
                                             const checkpoint::suspend_options &options,
                                             checkpoint::suspender &with,
                                             suspended_stores &entries) {
  suspended_tag sum;
  sum.store = options.store;
  std::size_t n = 0;
  const auto failed = [&](const error &why) {
    while (n > 0 && with.resume(tags[n - 1])) {
      const lock_guard lock(mutex_);
      suspended_stores_.erase(tags[--n]);
    }
    resume_task(tags.subspan(n));
    return tl::unexpected(n == 0 ? why
                                 : why.with({.cause = "the first " + std::to_string(n) +
                                                      " tags could not be resumed and stay "
                                                      "suspended: resume them"}));
  };
  for (; n < tags.size(); ++n) {
    auto done = with.suspend(tags[n], options);
    if (!done) return failed(done.error());
    sum.places += done->places;
    sum.bytes += done->bytes;
    sum.released += done->released;
    const lock_guard lock(mutex_);
    suspended_stores_.erase(tags[n]);
    suspended_stores_.insert(entries.extract(tags[n]));
  }
  return sum;
}

result<suspended_tag> executor::resume(const resume_request &r) {
  STILLMAP_ASSIGN_OR_RETURN(const auto my_turn, take_turn(request_kind::resume));
  STILLMAP_ASSIGN_OR_RETURN(checkpoint::suspender *const suspender, get_suspender());
  std::vector<std::string> tags{r.tag};
  if (r.all) {
    tags.clear();
    for (suspended_tag &s : suspender->suspended()) tags.push_back(std::move(s.tag));
    if (tags.empty()) {
      return make_error(errc::invalid_argument, "no tag is suspended");
    }
  }
  suspended_tag sum;
  result<suspended_tag> last = sum;
  std::size_t n = 0;
  for (; n < tags.size(); ++n) {
    if (last = suspender->resume(tags[n]); !last) break;
    sum.store = last->store;
    sum.places += last->places;
    sum.bytes += last->bytes;
    sum.released += last->released;
    const lock_guard lock(mutex_);
    suspended_stores_.erase(tags[n]);
  }
  if (n != 0) resume_task(tags_view(tags).first(n));
  if (!last || !r.all) return last;
  return sum;
}

result<image::written> executor::snapshot(
    const snapshot_request &r, std::stop_token stop,
    const std::function<bool(const snapshot_progress &)> &on_progress) {
  STILLMAP_ASSIGN_OR_RETURN(const auto my_turn, take_turn(request_kind::snapshot, stop));
  std::stop_source cancel = my_turn->cancel();
  STILLMAP_ASSIGN_OR_RETURN(const auto tags, tags_for(r.all, r.tags));
  STILLMAP_RETURN_IF_ERROR(check_mapped(tags));
  snapshot::save_options options;
  options.image.replace = r.replace;
  options.image.force = r.force;
  options.image.compress = r.compress;
  options.image.verify = r.verify;
  options.image.cancel = cancel.get_token();
  if (!r.key.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(const auto key,
                              checkpoint::read_key(r.key, checkpoint::secrecy::owner));
    options.image.key = image::secret_key{key};
  }
  if (!r.sign_with.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(const auto key,
                              checkpoint::read_key(r.sign_with, checkpoint::secrecy::owner));
    options.image.sign_with = image::signing_key{key};
  }
  if (!r.parent.empty()) {
    image::open_options parents;
    parents.key = options.image.key;
    parents.cancel = options.image.cancel;
    STILLMAP_ASSIGN_OR_RETURN(options.image.parent, image::reader::open(r.parent, parents));
  }
  options.image.on_progress = [&](const image::write_progress &p) {
    set_progress(p.bytes, p.total_bytes);
    const bool verifying = p.phase == image::write_phase::verifying;
    if (!on_progress({verifying, p.bytes, p.total_bytes, p.stored})) cancel.request_stop();
  };
  STILLMAP_RETURN_IF_ERROR(quiesce(tags, options.image.cancel));
  if (options_.idle) options.idle = options_.idle();
  auto saved = snapshot::save(device_, tags, r.path, options);
  resume_task(tags);
  if (saved) my_turn->succeeded();
  return saved;
}

void executor::set_progress(std::uint64_t done, std::uint64_t total) {
  const lock_guard lock(mutex_);
  job_.bytes = done;
  job_.total_bytes = total;
}

result<snapshot::restored_contents> executor::restore(
    const restore_request &r, std::stop_token stop,
    const std::function<bool(const snapshot_progress &)> &on_progress) {
  STILLMAP_ASSIGN_OR_RETURN(const auto my_turn, take_turn(request_kind::restore, stop));
  std::stop_source cancel = my_turn->cancel();
  snapshot::restore_contents_options options;
  options.tags = r.tags;
  options.cancel = cancel.get_token();
  options.image.cancel = options.cancel;
  if (!r.key.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(const auto key,
                              checkpoint::read_key(r.key, checkpoint::secrecy::owner));
    options.image.key = image::secret_key{key};
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto image, image::reader::open(r.path, options.image));
  // What would be refused anyway, and a damaged image, do not stop the application. Its memory may
  // change until it is stopped, so the memory is looked at again then.
  STILLMAP_RETURN_IF_ERROR(snapshot::check_mapped_as_saved(device_, image, r.tags));
  image::verify_options verify;
  verify.cancel = options.cancel;
  verify.on_progress = [&](const image::verify_progress &p) {
    set_progress(p.bytes, p.total_bytes);
    if (!on_progress({true, p.bytes, p.total_bytes, 0})) cancel.request_stop();
  };
  STILLMAP_RETURN_IF_ERROR(image.verify(verify));
  options.verify = false;
  options.on_progress = [&](const snapshot::restore_progress &p) {
    set_progress(p.bytes, p.total_bytes);
    static_cast<void>(on_progress({false, p.bytes, p.total_bytes, 0}));
  };
  const std::vector<std::string> tags = r.all ? image.manifest().tags : r.tags;
  STILLMAP_RETURN_IF_ERROR(quiesce(tags, options.cancel));
  if (options_.idle) options.idle = options_.idle();
  if (!on_progress({})) cancel.request_stop();  // the client left meanwhile
  auto restored = snapshot::restore_contents(device_, image, options);
  resume_task(tags);
  if (restored) my_turn->succeeded();
  return restored;
}

result<handoff::sent_memory> executor::handoff(const handoff_request &r, std::stop_token stop,
                                               std::stop_token waits) {
  STILLMAP_RETURN_IF_ERROR(check_may_release());
  STILLMAP_ASSIGN_OR_RETURN(const auto my_turn, take_turn(request_kind::handoff));
  STILLMAP_ASSIGN_OR_RETURN(const auto tags, tags_for(r.all, r.tags));
  STILLMAP_RETURN_IF_ERROR(check_mapped(tags));
  STILLMAP_ASSIGN_OR_RETURN(auto to, handoff::connection::connect(r.to, r.timeout, waits));
  bool stopped = false;
  handoff::handoff_options options;
  options.timeout = r.timeout;
  options.allow = options_.allow;
  options.cancel = stop;
  options.idle = options_.idle;
  options.quiesce = [&] {
    stillmap::status s = quiesce(tags, stop);
    stopped = s.has_value();
    return s;
  };
  auto sent = handoff::send(device_, to, tags, options);
  if (!sent) {
    if (stopped) resume_task(tags);
  } else if (options_.task.released) {
    options_.task.released(tags);
  }
  return sent;
}

}  // namespace stillmap::control
