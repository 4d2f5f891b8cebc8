#include "tools/stillmap/task/each_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

constexpr std::chrono::milliseconds busy_interval{20};

// Calls act(i) for each of `count` tasks at the same time, and requests stop after `timeout`.
class concurrent_calls {
 public:
  using call = std::function<void(std::size_t i, const std::stop_token &given_up)>;

  concurrent_calls(std::size_t count, const call &act, std::chrono::milliseconds timeout) {
    std::size_t left_out = 0;
    for (std::size_t i = 0; i < count; ++i) {
      try {
        threads_.emplace_back([this, i, &act] {
          act(i, given_up_.get_token());
          const std::lock_guard lock(mutex_);
          ++ended_;
          changed_.notify_all();
        });
      } catch (const std::system_error &) {  // no thread: it is not asked
        ++left_out;
      } catch (const std::bad_alloc &) {
        ++left_out;
      }
    }
    {
      std::unique_lock lock(mutex_);
      (void)changed_.wait_for(lock, timeout, [&] { return ended_ == count - left_out; });
    }
    given_up_.request_stop();
    threads_.clear();
  }

 private:
  std::stop_source given_up_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t ended_ = 0;              // guarded by mutex_
  std::vector<std::jthread> threads_;  // destroyed first
};

control::client client_for(const std::string &socket, const std::stop_token &given_up) {
  control::client_options options;
  options.timeout = std::chrono::hours(24);  // given up before
  options.cancel = given_up;
  return control::client(socket, options);
}

bool is_meant(const control::tag_status &t, const tag_request &what) {
  return what.memory.all ? !t.tag.empty() : t.tag == what.memory.tag;
}

// Tags with memory that the request is about. Memory that is published stays mapped.
std::vector<std::string> tags_for(const control::process_status &s, const tag_request &what) {
  std::vector<std::string> out;
  std::uint64_t bytes = 0;
  for (const control::tag_status &t : s.tags) {
    const std::uint64_t there = what.suspends ? t.mapped_bytes : t.suspended_bytes;
    if (!is_meant(t, what) || there == 0) continue;
    out.push_back(t.tag);
    bytes += there;
  }
  // Published bytes are those of the whole process: of one tag the server knows.
  const bool only_published = what.suspends && what.memory.all && bytes <= s.published_bytes;
  return only_published ? std::vector<std::string>() : out;
}

// Of a task for which tags_for() has none.
std::string describe(const control::process_status &s, const tag_request &what) {
  if (!what.suspends) return "not suspended";
  bool is_mapped = false;
  std::vector<std::string> stores;
  for (const control::tag_status &t : s.tags) {
    if (!is_meant(t, what)) continue;
    is_mapped = is_mapped || t.mapped_bytes != 0;
    if (t.suspended_bytes == 0) continue;
    const std::string store = t.store ? name_of(*t.store) : "by the program";
    if (std::find(stores.begin(), stores.end(), store) == stores.end()) stores.push_back(store);
  }
  if (!stores.empty()) return "suspended already (" + join(stores, ", ") + ")";
  return is_mapped ? "published, which stays mapped" : "no memory is mapped";
}

status check_store(const control::process_status &s, const tag_request &what) {
  for (const control::tag_status &t : s.tags) {
    const bool is_elsewhere =
        t.suspended_bytes != 0 && t.store && *t.store != what.memory.store && is_meant(t, what);
    if (!is_elsewhere) continue;
    const auto e =
        make_error(errc::busy, "the memory is suspended already, elsewhere: resume it first");
    return tl::unexpected(e.value().with(
        {.where = t.tag, .found = name_of(*t.store), .expected = name_of(what.memory.store)}));
  }
  return {};
}

// A request that was given up while it was carried out, or at that moment, goes on to its end.
result<control::process_status> status_when_idle(const control::client &task,
                                                 const std::stop_token &given_up) {
  for (;;) {
    std::this_thread::sleep_for(busy_interval);
    auto s = task.status();
    if (!s || s->job.request == control::request_kind::none || given_up.stop_requested()) return s;
  }
}

status undo_one(const control::client &task, const tag_request &what, const answered_task &of,
                const std::stop_token &given_up) {
  const auto s = status_when_idle(task, given_up);
  if (!s && s.error().code == std::errc::connection_refused) return {};  // it has ended
  STILLMAP_RETURN_IF_ERROR(s);
  if (s->job.request != control::request_kind::none) {
    return make_error(errc::operation_canceled, "it carries out a request still");
  }
  if (of.has_more_tags) {
    if (what.suspends) return task.resume_all().map([](const auto &) {});
    return make_error(errc::not_supported, "which of its tags were suspended is not known");
  }
  for (const control::tag_status &t : s->tags) {
    if (std::find(of.tags.begin(), of.tags.end(), t.tag) == of.tags.end()) continue;
    if (what.suspends && t.suspended_bytes != 0) STILLMAP_RETURN_IF_ERROR(task.resume(t.tag));
    if (!what.suspends && t.mapped_bytes != 0) {
      STILLMAP_RETURN_IF_ERROR(task.suspend({.tag = t.tag}));
    }
  }
  return {};
}

// A task that was given up says less than one that has refused.
bool is_given_up(const error &e) {
  return e.code == std::errc::operation_canceled;
}

// Of those that were never connected with, nothing is to be undone: they have no tags.
failure failure_of(const std::string &socket, const error &e, std::chrono::milliseconds timeout) {
  if (!is_given_up(e)) return failure(e.about(socket));
  return failure(exit_busy, fmt::format("{}: no answer in {} s", socket,
                                        static_cast<double>(timeout.count()) / 1000));
}

}  // namespace

status ask_task(const control::client &task, const tag_request &what, answered_task &t) {
  STILLMAP_ASSIGN_OR_RETURN(const auto s, task.status());
  t.has_more_tags = what.memory.all && s.omitted_tags != 0;
  t.knows_tag = s.omitted_tags != 0 || std::any_of(s.tags.begin(), s.tags.end(),
                                                   [&](auto &tag) { return is_meant(tag, what); });
  if (what.suspends && what.store_is_given) STILLMAP_RETURN_IF_ERROR(check_store(s, what));
  t.tags = tags_for(s, what);
  if (t.tags.empty() && s.omitted_tags == 0) {
    t.as_it_is = describe(s, what);
    return {};
  }
  STILLMAP_ASSIGN_OR_RETURN(t.done, what.suspends     ? task.suspend(what.memory)
                                    : what.memory.all ? task.resume_all()
                                                      : task.resume(what.memory.tag));
  return {};
}

std::string undo_each(const std::vector<answered_task> &done, const tag_request &what,
                      std::chrono::milliseconds timeout) {
  std::vector<char> undone(done.size());
  const concurrent_calls asked(
      done.size(),
      [&](std::size_t i, const std::stop_token &given_up) {
        undone[i] =
            with_host_memory([&] {
              return undo_one(client_for(done[i].socket, given_up), what, done[i], given_up);
            }).has_value();
      },
      timeout);
  std::vector<std::string> left;
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (undone[i] == 0) left.push_back(done[i].socket);
  }
  return left.empty() ? "" : "; what has come of it in " + join(left, ", ") + " is not known";
}

outcome<std::vector<answered_task>> ask_each(const std::vector<std::string> &sockets,
                                             const tag_request &what,
                                             std::chrono::milliseconds timeout,
                                             std::chrono::milliseconds undo_timeout) {
  std::vector<answered_task> out;
  for (const std::string &socket : sockets) out.emplace_back().socket = socket;
  const operation_scope scope("stillmap task");
  std::vector<status> answers(sockets.size(),
                              make_system_error(EAGAIN, "no thread could be created"));
  const concurrent_calls asked(
      sockets.size(),
      [&](std::size_t i, const std::stop_token &given_up) {
        answers[i] = with_host_memory(
            [&] { return ask_task(client_for(sockets[i], given_up), what, out[i]); });
      },
      timeout);
  std::optional<std::size_t> failed;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if (answers[i]) continue;
    if (!failed || (is_given_up(answers[*failed].error()) && !is_given_up(answers[i].error()))) {
      failed = i;
    }
  }
  if (!failed) return out;
  const failure reason = failure_of(sockets[*failed], answers[*failed].error(), timeout);
  // Also what has failed: a task may have done it, and have had no memory to say so.
  std::erase_if(out, [](const answered_task &t) { return t.tags.empty() && !t.has_more_tags; });
  const std::string unknown = undo_each(out, what, undo_timeout);
  return fail(reason.status,
              reason.line + (unknown.empty() ? "; every other task is as it was" : unknown));
}

}  // namespace stillmap::tool
