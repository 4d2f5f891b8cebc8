#include <algorithm>
#include <thread>

#include "stillmap/checkpoint/common/internal/wait_idle.h"
#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/migration/internal/copying.h"
#include "stillmap/checkpoint/migration/internal/link.h"
#include "stillmap/checkpoint/migration/internal/reporter.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::migration {
namespace {

using clock = std::chrono::steady_clock;

constexpr const char *op = "migration::send";

double seconds_since(clock::time_point t) {
  return std::chrono::duration<double>(clock::now() - t).count();
}

result<task_id> random_id() {
  const auto id = image::make_id();
  if (!id) return tl::unexpected(id.error().why);
  return task_id{id->bytes};
}

status check(const send_options &how, std::size_t page_bytes) {
  const auto no = [](const char *why, std::uint64_t value, std::uint64_t limit) {
    return make_error(errc::invalid_argument, op, why, value, limit);
  };
  if (how.records.empty()) return no("no folder for the record of ownership", 0, 0);
  if (how.channels == 0 || how.channels > most_channels) {
    return no("so many channels cannot be", how.channels, most_channels);
  }
  if (how.chunk_bytes < least_chunk || how.chunk_bytes > largest_chunk ||
      (how.chunk_bytes & (how.chunk_bytes - 1)) != 0 || page_bytes % how.chunk_bytes != 0) {
    return no("chunks of this size cannot be: a power of two, 64 KiB to a page", how.chunk_bytes,
              page_bytes);
  }
  if (how.most_rounds == 0) return no("no round of copying is none", 0, 1);
  return {};
}

}  // namespace

class sender::core {
 public:
  core(const device &d, std::vector<std::string> tags, send_options how)
      : device_(d), tags_(std::move(tags)), how_(std::move(how)) {}

  sent_memory send(transport &to) {
    if (out_.whose != whose::source) {
      sent_memory told = out_;
      told.why = make_error(errc::invalid_argument, op, "it has been sent already").value();
      return told;
    }
    out_ = {};
    began_ = clock::now();
    status s = attempt(to);
    out_.seconds = seconds_since(began_);
    if (s) return out_;
    return stay(s.error());
  }

  sent_memory settle(transport &to) {
    const auto say = [this](const error &e) {
      out_.why = e;
      return out_;
    };
    if (!record_) {
      if (status s = take_record(); !s) return say(s.error());
    }
    if (mine_.state != ownership::intent) {
      out_.whose = mine_.state == ownership::released ? whose::destination : whose::source;
      return say({make_error_code(errc::invalid_argument), "migration::settle",
                  "nothing is undecided about this task", mine_.epoch, 0});
    }
    out_.whose = whose::undecided;
    out_.task = mine_.task;
    find_out(
        to,
        make_error(errc::busy, "migration::settle", "the destination cannot be reached").value());
    return out_.whose == whose::source ? stay(*out_.why) : out_;
  }

  progress now() const { return tells_.now(); }

 private:
  // Until the destination owns it. Failure: it is ours, unless out_ says otherwise.
  status attempt(transport &to) {
    if (status s = check(how_, device_.capabilities().page_bytes); !s) return s;
    if (status s = take_record(); !s) return s;
    if (mine_.state != ownership::owner && mine_.state != ownership::running) {
      return make_error(errc::busy, op, "by its record the task is not this machine's",
                    mine_.epoch);
    }
    memory_.emplace(device_, tags_, how_.chunk_bytes);
    if (const auto seen = memory_->look(); !seen) return tl::unexpected(seen.error());
    out_.bytes = memory_->bytes();
    reached(step::described);
    link_.emplace(device_, how_);
    {
      const std::stop_callback cutting(how_.abort, [this] { link_->cut(); });
      status s = copy_all(to);
      if (how_.abort.stop_requested()) s = make_error(errc::busy, op, "aborted");
      if (!s) return s;
      // From here on the abort is not heard.
    }
    return give_away(to);
  }

  status take_record() {
    task_id task = how_.task;
    if (task.is_zero()) {
      const auto made = random_id();
      if (!made) return tl::unexpected(made.error());
      task = *made;
    }
    out_.task = how_.task = task;
    auto file = record_file::open(how_.records, task);
    if (!file) return tl::unexpected(file.error());
    const auto before = file->read();
    if (!before) return tl::unexpected(before.error());
    record_.emplace(std::move(*file));
    mine_ = before->value_or(record{});
    mine_.task = task;
    out_.epoch = mine_.epoch;
    return {};
  }

  status copy_all(transport &to) {
    const hello h{how_.task, mine_.epoch, device_.capabilities().page_bytes, how_.chunk_bytes,
                  static_cast<std::uint32_t>(how_.channels)};
    if (status s = link_->greet(to, h); !s) return s;
    out_.to = link_->who();
    reached(step::greeted);
    if (status s = link_->prepare(memory_->layout()); !s) return s;
    reached(step::prepared);
    if (status s = link_->join(to); !s) return s;
    reached(step::joined);
    copying copies(how_, *memory_, *link_, tells_, out_);
    const status copied = copies.while_it_runs();
    throttled_ = copies.throttled();
    if (!copied) return copied;
    stopped_at_ = clock::now();
    if (how_.quiesce) {
      stopped_ = true;
      if (status s = how_.quiesce(); !s) return s;
    }
    const auto idle = how_.idle ? std::optional<fence>(how_.idle()) : std::nullopt;
    if (status s = checkpoint::wait_until_idle(device_, idle); !s) return s;
    reached(step::quiet);
    return copies.the_rest();
  }

  // The other side has all of it, and waits for our word.
  status give_away(transport &to) {
    record next = mine_;
    next.state = ownership::intent;
    next.session = link_->session();
    next.peer = out_.to.where + ' ' + out_.to.name;
    if (status s = record_->write(next); !s) {
      (void)record_->write(mine_);  // which of both is there is the same to us: nothing was said
      return s;
    }
    mine_ = next;
    out_.whose = whose::undecided;
    reached(step::intent);
    const status told = link_->commit(asked());
    reached(step::committed);
    if (told) {
      moved();
      return {};
    }
    find_out(to, told.error());
    if (out_.whose == whose::source) return tl::unexpected(*out_.why);
    return {};
  }

  question asked() const { return {mine_.task, mine_.session, mine_.epoch + 1}; }

  // After the intent: until the destination says what it is.
  void find_out(transport &to, const error &why) {
    out_.why = why;
    const auto until = clock::now() + how_.settle;
    for (auto pause = patience(50);; pause = std::min(pause * 2, patience(1000))) {
      const auto answer = ask(to, asked(), how_.wait);
      if (answer && *answer == standing::owns) {
        moved();
        return;
      }
      if (answer) {
        mine_.state = ownership::owner;
        ++mine_.epoch;  // the one that it would have had is spent
        if (const status s = record_->write(mine_); !s) out_.why = s.error();
        out_.epoch = mine_.epoch;
        out_.whose = whose::source;
        return;
      }
      out_.why = answer.error();
      if (clock::now() + pause > until) return;
      std::this_thread::sleep_for(pause);
    }
  }

  void moved() {
    out_.whose = whose::destination;
    out_.why.reset();
    out_.epoch = ++mine_.epoch;
    if (stopped_at_ != clock::time_point()) out_.pause = seconds_since(stopped_at_);
    reached(step::told_owner);
    mine_.state = ownership::released;
    // Where it does not get onto the disk, `intent` is there, and settle() finds out the same.
    if (const status s = record_->write(mine_); !s) report_background_error(s.error());
    record_.reset();
    link_.reset();
    if (memory_) let_go();
    reached(step::released);
  }

  // It is another machine's. The addresses stay their owners', with nothing behind them.
  void let_go() {
    std::vector<std::shared_ptr<page_pool>> homes;
    for (const page_ptr &p : memory_->memory().pages) {
      if (std::find(homes.begin(), homes.end(), p.pool()) == homes.end()) homes.push_back(p.pool());
    }
    if (const status s = checkpoint::take_away(device_, memory_->memory()); !s) {
      report_background_error(s.error());
      out_.unmapped = false;
    }
    memory_.reset();
    for (const auto &pool : homes) {
      if (const auto went = pool->trim(); !went) report_background_error(went.error());
    }
  }

  sent_memory stay(const error &why) {
    if (out_.whose != whose::source) return out_;
    if (link_) link_->discard();
    link_.reset();
    memory_.reset();
    record_.reset();
    out_.why = why;
    if (throttled_) how_.throttle(0);
    throttled_ = false;
    if (stopped_ && how_.go_on) how_.go_on();
    stopped_ = false;
    return out_;
  }

  void reached(step at) {
    tells_.note([&](progress &p) { p.bytes = out_.bytes; });
    tells_.reached(at);
  }

  const device device_;
  const std::vector<std::string> tags_;
  send_options how_;
  std::optional<record_file> record_;
  record mine_;
  std::optional<outgoing> memory_;
  std::optional<link> link_;
  sent_memory out_;
  bool stopped_ = false, throttled_ = false;
  clock::time_point began_, stopped_at_;
  reporter tells_{how_.at};
};

sender::sender(const device &d, std::vector<std::string> tags, send_options how)
    : core_(std::make_unique<core>(d, std::move(tags), std::move(how))) {}
sender::sender(sender &&) noexcept = default;
sender::~sender() = default;
sent_memory sender::send(transport &to) {
  return core_->send(to);
}
sent_memory sender::settle(transport &to) {
  return core_->settle(to);
}
progress sender::now() const {
  return core_->now();
}

}  // namespace stillmap::migration
