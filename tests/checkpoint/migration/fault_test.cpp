// Fails each driver call of either end of a migration once: afterwards one end owns the whole task,
// the other has nothing of it, nothing leaks without a background error, and a task that stayed can
// be sent again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/effort.h"
#include "tests/support/held.h"
#include "tests/support/sample_task.h"

namespace stillmap::migration::testing {
namespace {

using stillmap::testing::held;
using stillmap::testing::put;
using namespace stillmap::testing::sample;
namespace control = stillmap::testing::hostcuda_control;

constexpr std::uint64_t grows_at = far_away + 3 * apart;
const std::vector<std::string> all_tags{"weights", "cache", "grows"};

// "cuMemMap 3": the third call of cuMemMap fails.
struct fault {
  std::string function;
  std::uint64_t nth = 0;

  void arm() const {
    control::faults_fired();
    if (nth != 0) control::fail(function.c_str(), nth, CUDA_ERROR_UNKNOWN);
  }
  void disarm() const {
    if (nth != 0) control::stop_failing(function.c_str());
  }
};

std::string text_of(const driver_counts &spent) {
  std::string all;
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    if (spent.calls[i] == 0) continue;
    all += std::string(" ") + name_of(static_cast<driver_call>(i)) + ' ' +
           std::to_string(spent.calls[i]);
  }
  return all;
}

// The sample task, and a buffer that is written and grows until the task stops.
class running_task {
 public:
  explicit running_task(const device &d) : fixed_(d), device_(d) {
    page_pool_options pages;
    pages.keep_free = 0;
    auto pool = page_pool::create(d, pages);
    buffer_options options;
    options.reserve_bytes = 8 * d.capabilities().page_bytes;
    options.hint = device_address(grows_at);
    options.tag = "grows";
    options.pools = {*pool};
    auto made = growable_buffer::create(d, options);
    if (!made) throw std::runtime_error(made.error().message());
    grows_ = std::move(*made);
    step(11, 1);
  }

  // Its last steps. False: one of the task's own driver calls failed, not one of the migration.
  bool last_steps() { return step(12, 2); }

  static std::string wrong(const device &d, bool stopped) {
    const std::size_t page = d.capabilities().page_bytes;
    if (const std::string w = task::wrong(d); !w.empty()) return w;
    for (unsigned i = 0; i < (stopped ? 2u : 1u); ++i) {
      if (!stillmap::testing::holds(d, device_address(grows_at + i * page), page,
                                    (stopped ? 12 : 11) + i)) {
        return "page " + std::to_string(i) + " of what grows differs";
      }
    }
    return {};
  }

 private:
  bool step(unsigned seed, std::size_t pages) {
    const std::size_t page = device_.capabilities().page_bytes;
    if (!grows_->resize(pages * page)) return false;
    try {
      for (unsigned i = 0; i < pages; ++i) {
        put(device_, grows_->address() + i * page, stillmap::testing::pattern(page, seed + i));
      }
    } catch (const std::runtime_error &) {
      return false;
    }
    return true;
  }
  task fixed_;
  device device_;
  std::optional<growable_buffer> grows_;
};

// The ledger as text, without blocks that have no tag: those belong to the sender.
std::string books_of(const device &d) {
  std::ostringstream out;
  std::vector<virtual_range> others;
  for (const block_record &b : d.space().blocks()) {
    if (b.tag.empty()) {
      others.push_back(b.range);
      continue;
    }
    out << b.range.begin.value() << ' ' << b.range.bytes << ' ' << b.tag << ' ' << b.generation
        << '\n';
  }
  for (const mapping_record &m : d.space().mappings()) {
    if (std::any_of(others.begin(), others.end(),
                    [&](const virtual_range &o) { return o.contains(m.range); })) {
      continue;
    }
    out << m.range.begin.value() << ' ' << m.range.bytes << " page "
        << (m.backing ? m.backing->id() : 0) << " state " << static_cast<int>(m.state);
    for (const access_grant &a : m.access) out << " access " << static_cast<int>(a.mode);
    out << '\n';
  }
  return out.str();
}

// A migration in which one driver call fails, at the source or at the destination.
struct point {
  std::uint64_t number = 0;  // also of the task, so that no two points share a record
  fault at_source, at_destination;

  task_id task() const {
    task_id id;
    for (std::size_t i = 0; i < 8; ++i) id.bytes[i] = static_cast<std::byte>(number >> (8 * i));
    return id;
  }
  std::string text() const {
    const fault &f = at_source.nth != 0 ? at_source : at_destination;
    return (at_source.nth != 0 ? "source, " : "destination, ") + f.function + ' ' +
           std::to_string(f.nth);
  }
};

// Messages between the two processes are files; the reader removes each.
void leave(const test_site &m, const char *name, const std::string &text) {
  const std::string path = m.folder() + '/' + name;
  std::ofstream(path + ".new") << text << '\n';
  std::filesystem::rename(path + ".new", path);
}
std::optional<std::string> find(const test_site &m, const char *name) {
  std::ifstream in(m.folder() + '/' + name);
  std::string text;
  if (!in || !std::getline(in, text)) return std::nullopt;
  std::filesystem::remove(m.folder() + '/' + name);
  return text;
}
template <class Done>
void wait_for(Done done) {
  for (int i = 0; i < 60'000 && !done(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class failing_calls : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    if (control::config().rfind("profile=h200", 0) != 0) {
      GTEST_SKIP() << "the calls are the same on every profile: one is enough";
    }
    if (part() == "destination") destination();
  }

  // The destination, for one point after the other. It exits after a point with background errors:
  // resources may be left.
  [[noreturn]] void destination() {
    const test_site m(meeting_place());
    auto at = receiver::create(dev(), at_destination(m), destination_options(m));
    if (!at) say_and_end(at.error().message());
    for (;;) {
      std::optional<std::string> order;
      wait_for([&] { return (order = find(m, "order")).has_value(); });
      if (!order) say_and_end("no more orders");
      point p;
      std::istringstream(*order) >> p.number >> p.at_destination.function >> p.at_destination.nth;
      const std::string said = std::to_string(p.number) + ": " + receive_once(*at, m, p);
      if (said.find("told") != std::string::npos) say_and_end(said);
      std::printf("\nVERDICT %s\n", said.c_str());
      std::fflush(stdout);
    }
  }

  std::string receive_once(receiver &at, const test_site &m, const point &p) {
    const fault &f = p.at_destination;
    const held before = held::now(driver());
    const driver_counts calls = counts();
    const std::uint64_t reported = background_error_count();
    const auto told = [&] { return background_error_count() != reported; };
    f.arm();
    std::printf("\nVERDICT %llu ready\n", static_cast<unsigned long long>(p.number));
    std::fflush(stdout);
    std::optional<received_memory> here;
    bool over = false;
    // The source learns the outcome before receive() returns, and threads end later still.
    wait_for([&] {
      over = over || find(m, "over").has_value();
      if (auto came = at.receive(std::chrono::milliseconds(0)); came) here = std::move(*came);
      const hostcuda_counters now = control::counters();
      const bool gone = now.live_streams == 0 && now.live_host_ranges == 0;
      return over && (told() || (gone && (here || now.live_reservations == 0)));
    });
    // A background error alone does not tell whether the task has arrived.
    if (!here && told()) {
      if (auto came = at.receive(std::chrono::milliseconds(2000)); came) here = std::move(*came);
    }
    f.disarm();
    const std::string spent = text_of(counts() - calls);
    std::string said = f.nth == 0 || control::faults_fired() != 0 ? "" : ", not reached";
    if (!here) {
      said = "nothing" + said;
    } else {
      const std::string wrong = running_task::wrong(dev(), true);
      said = (wrong.empty() ? "owner" : wrong) + said;
      here.reset();
    }
    if (told()) return said + ", told";
    if (const std::string more = before.more_now(driver()); !more.empty())
      said += ", leaks: " + more;
    return f.function == "count" ? said + spent : said;
  }

  struct attempt {
    sent_memory sent;
    bool own = false;  // a call of the task itself failed
    bool reached = false, told = false, stopped = false;
    std::string spent, left, there;
  };

  // The largest chunks: every chunk makes the same driver calls, so a few are enough.
  send_options sending_pages(const test_site &m, const point &p) const {
    send_options options = source_options(m);
    options.task = p.task();
    options.chunk_bytes = static_cast<std::uint32_t>(page());
    options.max_downtime = std::chrono::hours(1);  // every estimate is short enough: two rounds
    options.resolve_timeout = std::chrono::milliseconds(2000);
    return options;
  }

  // Compares the ledger with its state when the task last ran without the migration.
  attempt send(running_task &t, const test_site &m, other_process &there, const point &p) {
    const fault &f = p.at_source;
    const std::string number = std::to_string(p.number);
    leave(m, "order",
          number + ' ' + p.at_destination.function + ' ' + std::to_string(p.at_destination.nth));
    EXPECT_EQ(there.verdict_that_begins(number + " ready"), number + " ready");
    attempt a;
    std::string books = books_of(dev());
    int stops = 0;
    send_options options = sending_pages(m, p);
    options.quiesce = [&]() -> status {
      ++stops;
      a.own = !t.last_steps();
      books = books_of(dev());
      a.stopped = true;
      return {};
    };
    options.resume = [&] { --stops; };
    const auto to = to_destination(m);
    const held before = held::now(driver());
    const driver_counts calls = counts();
    const std::uint64_t reported = background_error_count();
    {
      sender from(dev(), all_tags, options);
      f.arm();
      a.sent = from.send(*to);
      if (a.sent.owner == owner::in_doubt) a.sent = from.resolve(*to);
      f.disarm();
    }
    a.reached = f.nth == 0 || control::faults_fired() != 0;
    a.told = background_error_count() != reported;
    a.spent = text_of(counts() - calls);
    leave(m, "over", "");
    a.there = there.verdict_that_begins(number + ": ");
    a.there = a.there.substr(std::min(a.there.size(), number.size() + 2));
    if (a.own) return a;
    EXPECT_NE(a.sent.owner, owner::in_doubt);
    if (a.sent.owner == owner::source) {
      EXPECT_TRUE(a.sent.failure);
      EXPECT_EQ(stops, 0);
      EXPECT_EQ(books_of(dev()), books);
      EXPECT_EQ(running_task::wrong(dev(), a.stopped), "");
      if (!a.told && !a.stopped) a.left = before.more_now(driver());
    } else {
      EXPECT_FALSE(a.sent.failure) << a.sent.failure->message();
      EXPECT_TRUE(a.sent.unmapped || a.told);
      if (a.sent.unmapped) {
        EXPECT_EQ(dev().space().stats().mapped_bytes, page()) << "what did not go";
      }
    }
    return a;
  }

  // Runs one point, with a destination process that may have served earlier points.
  void try_at(const point &p) {
    SCOPED_TRACE(p.text());
    if (there_ == nullptr) {
      site_.emplace();
      there_ = std::make_unique<other_process>("destination", site_->folder());
    }
    {
      running_task t(dev());
      const attempt a = send(t, *site_, *there_, p);
      const bool has_it = a.there.rfind("owner", 0) == 0;
      const bool told_there = a.there.find("told") != std::string::npos;
      if (p.at_destination.function == "count") {
        source_calls_ = a.spent;
        destination_calls_ = a.there.substr(std::min(a.there.size(), std::strlen("owner")));
      } else if (a.own) {
        ++own_;
      } else {
        judge(p, a, has_it, told_there);
        // A task that stayed continues, and can be sent again.
        const std::uint64_t nth = std::max(p.at_source.nth, p.at_destination.nth);
        if (!has_it && !told_there && !a.told && (nth & (nth - 1)) == 0) {
          const attempt again = send(t, *site_, *there_, {p.number, {}, {}});
          EXPECT_EQ(again.sent.owner, owner::destination)
              << (again.sent.failure ? again.sent.failure->message() : "");
          EXPECT_EQ(again.there, "owner");
        }
      }
      if (told_there || a.own) there_.reset();
      if (!a.told && !a.own) return;
    }
    restart_as(nullptr);  // something could not be released
  }

  void judge(const point &p, const attempt &a, bool has_it, bool told_there) {
    ++points_;
    has_it ? ++moved_ : ++kept_;
    EXPECT_EQ(has_it, a.sent.owner == owner::destination) << a.there;
    EXPECT_TRUE(has_it || a.there.rfind("nothing", 0) == 0) << a.there;
    EXPECT_EQ(a.there.find("leaks"), std::string::npos) << a.there;
    EXPECT_EQ(a.left, "") << "at the source";
    // The number of calls depends on which channel gets which chunks.
    if (!a.reached || a.there.find("not reached") != std::string::npos) {
      ++missed_;
      EXPECT_TRUE(has_it) << "nothing failed";
    }
    const bool at_source = p.at_source.nth != 0;
    EXPECT_FALSE(at_source ? told_there : a.told) << "the other end was told";
    if (has_it && !a.told && !told_there) ++survived_;
  }

  std::optional<test_site> site_;
  std::unique_ptr<other_process> there_;
  std::string source_calls_, destination_calls_;
  std::size_t points_ = 0, kept_ = 0, moved_ = 0, survived_ = 0, own_ = 0, missed_ = 0;
};

TEST_F(failing_calls, each_once_leaves_one_owner) {
  expect_unreturnable();
  point p;
  p.number = 1;
  p.at_destination.function = "count";
  try_at(p);
  ASSERT_NE(source_calls_, "");
  ASSERT_EQ(destination_calls_.rfind(" cu", 0), 0u) << destination_calls_;
  const bool every = std::getenv("STILLMAP_MODEL_SECONDS") != nullptr;  // the run has time for all
  // Otherwise the first of each function, the last and some between; fewer under sanitizers. Two
  // thirds of all calls enter and leave a context around the others.
  const std::uint64_t rarely = stillmap::testing::sanitizer().empty() ? 1 : 24;
  const auto tried = [rarely](const fault &f, std::uint64_t of) {
    const bool context = f.function.rfind("cuCtx", 0) == 0;
    const std::uint64_t every_so_many = (context ? 20 : 5) * rarely;
    return f.nth % every_so_many == of % every_so_many || (!context && f.nth == 1);
  };
  for (const bool at_source : {true, false}) {
    std::istringstream all(at_source ? source_calls_ : destination_calls_);
    fault f;
    std::uint64_t n = 0;
    while (all >> f.function >> n) {
      for (f.nth = 1; f.nth <= n; ++f.nth) {
        p = {p.number + 1, at_source ? f : fault{}, at_source ? fault{} : f};
        if (!every && !tried(f, n)) continue;
        try_at(p);
      }
    }
  }
  EXPECT_GT(points_, every ? 200u : 80u / rarely);
  EXPECT_LT(missed_, points_ / 4) << "calls that were not reached";
  std::printf(
      "note: migration, %s driver call%s of either end failed once: %zu points; %zu with the "
      "source as owner, %zu with the destination as owner, of "
      "these %zu with nothing to tell (no digests are made then, or there was no copy to wait "
      "for); "
      "%zu of the task's own, %zu not reached\n",
      every ? "each" : "some of each kind of", every ? "" : "s", points_, kept_, moved_, survived_,
      own_, missed_);
}

}  // namespace
}  // namespace stillmap::migration::testing
