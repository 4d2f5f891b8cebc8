#include "stillmap/checkpoint/control/audit.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string_view>

#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/owned_fd.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/utf8.h"

namespace stillmap::control {
namespace {

using record_writer = std::function<status(const audited_request &)>;

// "2026-12-02T00:20:01.123456Z"
std::string utc_of(std::chrono::system_clock::time_point at) {
  const auto us =
      std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count();
  const std::time_t seconds = us / 1'000'000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  const std::size_t bytes = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::string micro = std::to_string(us % 1'000'000);
  micro.insert(0, 6 - micro.size(), '0');
  return std::string(text, bytes) + '.' + micro + 'Z';
}

double milliseconds_of(const audited_request &r) {
  return static_cast<double>(r.duration.count()) / 1e6;
}

const char *outcome_of(const audited_request &r) {
  return r.failed ? "failed" : "ok";
}

std::string json_line(const audited_request &r) {
  json_writer json;
  json.begin_record().field("time", utc_of(r.began)).field("task", r.task).field("pid", ::getpid());
  json.field("client_pid", r.client.pid).field("client_uid", r.client.uid);
  json.field("client_program", r.client_program).field("request", name_of(r.request));
  json.field("all", r.all).begin_array("tags");
  for (const std::string &tag : r.tags) json.element(tag);
  json.end().field("subject", r.subject).field("outcome", outcome_of(r));
  if (r.failed) {
    json.field("error", r.failed->message());
  } else {
    json.nothing("error");
  }
  json.field("milliseconds", milliseconds_of(r)).field("refused_before", r.refused_before);
  return json.end().text() + '\n';
}

// A line of text about it, for people.
std::string sentence_of(const audited_request &r) {
  std::string out = r.request == request_kind::none ? "no request" : name_of(r.request);
  if (r.all) out += " of all tags";
  for (std::size_t i = 0; i < r.tags.size(); ++i) out += (i == 0 ? " of " : ", ") + r.tags[i];
  if (!r.subject.empty()) out += " (" + r.subject + ")";
  out += " at " + r.task + " by uid " + std::to_string(r.client.uid) + ", " +
         (r.client_program.empty() ? "process" : r.client_program) + " " +
         std::to_string(r.client.pid) + ": ";
  return out + (r.failed ? r.failed->message() : std::string("ok"));
}

class audit_file {
 public:
  explicit audit_file(std::string path) : path_(std::move(path)) {}

  result<owned_fd> open() const {
    // Not the end of a pipe, which might wait for a reader.
    owned_fd file(::open(path_.c_str(),
                         O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                         S_IRUSR | S_IWUSR | S_IRGRP));
    struct stat s {};
    if (file.get() < 0 || ::fstat(file.get(), &s) != 0) {
      return make_system_error(errno, "the audit log cannot be opened", path_);
    }
    if (S_ISREG(s.st_mode)) return file;
    return tl::unexpected(make_error(errc::invalid_argument, "the audit log is not a regular file")
                              .value()
                              .about(path_));
  }

  status write(const audited_request &r) const {
    const std::string line = json_line(r);
    STILLMAP_ASSIGN_OR_RETURN(const owned_fd file, open());
    // At once, so that lines of several processes do not mix.
    const ssize_t written = ::write(file.get(), line.data(), line.size());
    if (written == static_cast<ssize_t>(line.size())) return {};
    const int why = written < 0 ? errno : ENOSPC;
    if (written > 0) remove_end(file.get(), written);
    return make_system_error(why, "the audit log cannot be written", path_);
  }

 private:
  // Half a line would spoil the next one, too. Unless another process has written behind it.
  static void remove_end(int fd, ssize_t bytes) {
    const off_t end = ::lseek(fd, 0, SEEK_CUR);
    struct stat s {};
    if (end >= bytes && ::fstat(fd, &s) == 0 && s.st_size == end)
      (void)!::ftruncate(fd, end - bytes);
  }

  std::string path_;
};

// systemd's journal, by its native protocol: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
class audit_journal {
 public:
  explicit audit_journal(const std::string &name_space)
      : path_("/run/systemd/journal" + (name_space.empty() ? "" : "." + name_space) + "/socket") {}

  result<owned_fd> open() const {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    if (path_.size() >= sizeof to.sun_path) {
      return make_system_error(ENAMETOOLONG, "the journal's socket cannot be named", path_);
    }
    path_.copy(to.sun_path, path_.size());
    owned_fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0 ||
        ::connect(socket.get(), reinterpret_cast<const sockaddr *>(&to), sizeof to) != 0) {
      return make_system_error(errno, "the journal cannot be reached", path_);
    }
    return socket;
  }

  status write(const audited_request &r) const {
    constexpr std::size_t max_bytes = 16 << 10;  // of one field; a datagram takes some 200 KiB
    std::string all;
    const auto add = [&](std::string_view name, const std::string &value) {
      // Without control characters, so that a field is a line.
      all.append(name).append(1, '=').append(printable(value.substr(0, max_bytes))).append(1, '\n');
    };
    std::string tags;
    for (const std::string &tag : r.tags) tags += (tags.empty() ? "" : ",") + tag;
    add("MESSAGE", sentence_of(r));
    add("PRIORITY", r.failed ? "4" : "5");
    add("SYSLOG_IDENTIFIER", "stillmap");
    add("STILLMAP_TASK", r.task);
    add("STILLMAP_CLIENT_PID", std::to_string(r.client.pid));
    add("STILLMAP_CLIENT_UID", std::to_string(r.client.uid));
    add("STILLMAP_CLIENT_PROGRAM", r.client_program);
    add("STILLMAP_REQUEST", name_of(r.request));
    add("STILLMAP_TAGS", r.all ? "(all)" : tags);
    add("STILLMAP_SUBJECT", r.subject);
    add("STILLMAP_OUTCOME", outcome_of(r));
    add("STILLMAP_MILLISECONDS", format_fixed(milliseconds_of(r), 3));
    add("STILLMAP_REFUSED_BEFORE", std::to_string(r.refused_before));
    STILLMAP_ASSIGN_OR_RETURN(const owned_fd socket, open());
    if (::send(socket.get(), all.data(), all.size(), MSG_NOSIGNAL) >= 0) return {};
    return make_system_error(errno, "the journal does not take the audit record", path_);
  }

 private:
  std::string path_;
};

void write_to_all(const std::vector<record_writer> &writers, const audited_request &r) noexcept {
  for (const record_writer &write : writers) {
    const status written = with_host_memory("control::server", [&] { return write(r); });
    if (!written) report_background_error(written.error());
  }
}

// That can be written to now.
template <class Target>
result<record_writer> writer_for(Target target) {
  STILLMAP_RETURN_IF_ERROR(target.open());
  return record_writer([t = std::move(target)](const audited_request &r) { return t.write(r); });
}

result<record_writer> writer_for(std::string_view target) {
  constexpr std::string_view journal = "journald";
  if (target == journal) return writer_for(audit_journal(""));
  if (target.starts_with(journal) && target[journal.size()] == ':') {
    return writer_for(audit_journal(std::string(target.substr(journal.size() + 1))));
  }
  return writer_for(audit_file(std::string(target)));
}

}  // namespace

result<audit_function> open_audit_log(const std::string &targets) {
  return with_host_memory("control::open_audit_log", [&]() -> result<audit_function> {
    std::vector<record_writer> writers;
    for (std::size_t at = 0; at < targets.size();) {
      const std::size_t end = std::min(targets.find(',', at), targets.size());
      if (end != at) {
        STILLMAP_ASSIGN_OR_RETURN(auto made,
                                  writer_for(std::string_view(targets).substr(at, end - at)));
        writers.push_back(std::move(made));
      }
      at = end + 1;
    }
    if (writers.empty()) return audit_function();
    return audit_function(
        [to = std::move(writers)](const audited_request &r) { write_to_all(to, r); });
  });
}

result<audit_function> open_audit_log_of_environment() {
  const char *const targets = ::secure_getenv("STILLMAP_AUDIT");
  return with_host_memory("control::open_audit_log_of_environment",
                          [&]() -> result<audit_function> {
                            return open_audit_log(targets == nullptr ? "" : targets);
                          });
}

}  // namespace stillmap::control
