// Migration messages that are truncated, damaged, out of order or too large; and records on disk.
#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/base/error_wire.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <random>

#include "tests/checkpoint/image/disk_check.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/no_stdin.h"

namespace stillmap::migration::testing {
namespace {

template <class T>
bool fails_with(const result<T> &r, errc c) {
  return !r && r.error().is(c);
}

// A channel that receives what was sent on it.
class loop final : public channel {
 public:
  status handshake(std::chrono::milliseconds) override { return {}; }
  peer_identity peer() const override { return {}; }
  status send(std::span<const std::byte> b, std::chrono::milliseconds) override {
    bytes.insert(bytes.end(), b.begin(), b.end());
    return {};
  }
  status receive(std::span<std::byte> into, std::chrono::milliseconds) override {
    asked += into.size();
    if (into.size() > bytes.size()) return make_error(errc::busy, "there is no more");
    std::copy_n(bytes.begin(), into.size(), into.begin());
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(into.size()));
    return {};
  }
  void shutdown() noexcept override {}
  std::deque<std::byte> bytes;
  std::size_t asked = 0;
};

template <class T>
void every_damage(const std::vector<std::byte> &good, T decode) {
  ASSERT_TRUE(decode(good));
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(decode(std::vector(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n))))
        << n;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode(longer));
  // Either result is fine; sanitizers check that no access is out of bounds.
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    (void)decode(bad);
  }
  std::mt19937 dice(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> noise(dice() % 200);
    for (std::byte &b : noise) b = static_cast<std::byte>(dice());
    (void)decode(noise);
  }
}

hello a_hello() {
  return {task_id{}, 7, 2 << 20, 64 << 10, 2, {}};
}

TEST(migration_wire, EveryMessageDamaged) {
  every_damage(encode(a_hello()),
               [](const std::vector<std::byte> &b) { return decode_hello(b).has_value(); });
  every_damage(encode(outcome_query{task_id{}, session_id{}, 9}),
               [](const std::vector<std::byte> &b) { return decode_outcome_query(b).has_value(); });
  layout_message l;
  l.layout.blocks = {{{device_address(2 << 20), 4 << 20}, "weights"}};
  physical_properties here;
  here.location = on_device(checkpoint::memory_layout::own_device);
  l.layout.pages.assign(2, {2 << 20, here});
  l.layout.access = {{{on_device(-1), access_mode::read_write}}};
  l.layout.places = {{device_address(2 << 20), 0, 0}, {device_address(4 << 20), 1, 0}};
  l.pages = {3, 5};
  every_damage(encode(l), [](const std::vector<std::byte> &b) {
    return decode_layout_message(b).has_value();
  });
  l.pages = {3, 3};
  EXPECT_FALSE(decode_layout_message(encode(l))) << "two pages of one number";
}

TEST(migration_wire, a_welcome_names_a_data_acceptor_or_none) {
  welcome_message w;
  w.session.bytes[3] = std::byte{7};
  const auto survives = [&w] {
    const auto read = decode_welcome(encode(w));
    return read && read->session == w.session && read->data.transport == w.data.transport &&
           read->data.address == w.data.address;
  };
  EXPECT_TRUE(survives());
  const auto is_decoded = [](const std::vector<std::byte> &b) {
    return decode_welcome(b).has_value();
  };
  every_damage(encode(w), is_decoded);
  w.data = {"ucx", "[2001:db8::1]:4712"};
  EXPECT_TRUE(survives());
  every_damage(encode(w), is_decoded);
  w.data = {std::string(max_transport_name, 'u'), std::string(max_data_address, '1')};
  EXPECT_TRUE(survives());
  EXPECT_EQ(encode(w).size(), max_welcome_bytes);
  const std::string nul(1, '\0');
  for (const data_endpoint &bad : {data_endpoint{"ucx", ""},
                                   {"", "127.0.0.1:4712"},
                                   {"u cx", "127.0.0.1:4712"},
                                   {"ucx", "127.0.0.1:4712\n"},
                                   {"ucx", "127.0.0.1" + nul + ":4712"},
                                   {"ucx", "h\x80:1"},
                                   {std::string(max_transport_name + 1, 'u'), "127.0.0.1:4712"},
                                   {"ucx", std::string(max_data_address + 1, '1')}}) {
    EXPECT_FALSE(can_be_announced(bad));
    w.data = bad;
    EXPECT_FALSE(survives()) << bad.transport << ' ' << bad.address;
  }
}

TEST(migration_wire, GreetingsThatMakeNoSense) {
  const auto refused = [](const std::function<void(hello &)> &change) {
    hello h = a_hello();
    change(h);
    const auto read = decode_hello(encode(h));
    return !read && read.error().is(errc::corrupt);
  };
  EXPECT_FALSE(refused([](hello &) {}));
  EXPECT_TRUE(refused([](hello &h) { h.epoch = 0; }));
  EXPECT_TRUE(refused([](hello &h) { h.epoch = ~0ull; }));
  EXPECT_TRUE(refused([](hello &h) { h.page_bytes = 0; }));
  EXPECT_TRUE(refused([](hello &h) { h.chunk_bytes = 4096; }));
  EXPECT_TRUE(refused([](hello &h) { h.chunk_bytes = 96 << 10; }));
  EXPECT_TRUE(refused([](hello &h) { h.channels = 0; }));
  EXPECT_TRUE(refused([](hello &h) { h.channels = 65; }));
  EXPECT_FALSE(refused([](hello &h) { h.channels = 64; }));
  EXPECT_FALSE(refused([](hello &h) { h.channels = 1; }));
  EXPECT_FALSE(refused([](hello &h) { h.chunk_bytes = min_chunk_bytes; }));
  EXPECT_FALSE(refused([](hello &h) { h.page_bytes = h.chunk_bytes = max_chunk_bytes; }));
  EXPECT_TRUE(refused([](hello &h) { h.page_bytes = h.chunk_bytes = 2 * max_chunk_bytes; }));
  EXPECT_FALSE(refused([](hello &h) { h.page_bytes = h.chunk_bytes; }));
  EXPECT_TRUE(refused([](hello &h) { h.page_bytes = h.chunk_bytes + 4096; }));
  EXPECT_TRUE(refused([](hello &h) { h.page_bytes = h.chunk_bytes = min_chunk_bytes + 512; }));
}

TEST(migration_wire, OnlyKnownKindsOfMessages) {
  std::byte bytes[header::bytes];
  constexpr int last = static_cast<int>(kind::group_result);
  for (const int kind_number : {0, 1, last, last + 1, 0xffff}) {
    encode(header{static_cast<kind>(kind_number), 5, 6, {}}, bytes);
    const bool known = kind_number >= 1 && kind_number <= last;
    EXPECT_EQ(decode_header(bytes).has_value(), known) << kind_number;
  }
}

TEST(migration_wire, HeadersDamaged) {
  std::byte good[header::bytes];
  encode(header{kind::seal, 5, 6, {}}, good);
  ASSERT_TRUE(decode_header(good));
  for (std::size_t bit = 0; bit < 64; ++bit) {  // magic, version, kind
    std::byte bad[header::bytes];
    std::memcpy(bad, good, sizeof bad);
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const auto h = decode_header(bad);
    EXPECT_TRUE(!h || h->what != kind::seal) << bit;
  }
}

// A header alone allocates no memory, whatever length it announces.
TEST(migration_wire, ALengthThatNothingFollows) {
  loop c;
  std::byte head[header::bytes];
  encode(header{kind::layout, std::uint64_t{1} << 40, 0, {}}, head);
  ASSERT_TRUE(c.send(head, {}));
  auto m = receive(c, checkpoint::largest_layout, {});
  ASSERT_FALSE(m);
  EXPECT_TRUE(m.error().is(errc::corrupt));
  EXPECT_EQ(c.asked, header::bytes);
  encode(header{kind::layout, checkpoint::largest_layout, 0, {}}, head);
  ASSERT_TRUE(c.send(head, {}));
  EXPECT_FALSE(receive(c, checkpoint::largest_layout, {}));
  EXPECT_LE(c.asked, 2 * header::bytes + (1 << 20));
}

TEST(migration_wire, AnotherMessageThanWanted) {
  loop c;
  ASSERT_TRUE(send(c, kind::round_received, {}, {}));
  EXPECT_TRUE(fails_with(receive(c, kind::owner, 0, {}), errc::corrupt));
  for (const errc code : {errc::busy, errc::operation_canceled}) {
    const error why = make_error(code, "taken", 42).value();
    ASSERT_TRUE(send(c, kind::refusal, checkpoint::encode(why), {}));
    const auto m = receive(c, kind::owner, 0, {});
    ASSERT_FALSE(m);
    EXPECT_TRUE(m.error().is(code));
    EXPECT_EQ(m.error().value, 42u);
  }
}

TEST(migration_record, IsWholeOrRefused) {
  const test_site m;
  task_id task;
  task.bytes.fill(std::byte{1});
  record r{task, 5, ownership::intent, {}, "other:1 the\nother", {}};
  r.certificate = "ab12";
  r.set_transfer({}, 4, transfer_state::committed);
  r.set_transfer({{std::byte{9}}}, UINT64_MAX, transfer_state::offered);
  {
    auto file = record_file::open(m.records("source"), task);
    ASSERT_TRUE(file);
    EXPECT_FALSE(file->read()->has_value());
    ASSERT_TRUE(file->write(r));
    const auto back = file->read();
    ASSERT_TRUE(back && *back);
    EXPECT_EQ((*back)->epoch, 5u);
    EXPECT_EQ((*back)->state, ownership::intent);
    EXPECT_EQ((*back)->peer, "other:1 the?other");
    EXPECT_EQ((*back)->certificate, "ab12");
    ASSERT_EQ((*back)->transfers.size(), 2u);
    EXPECT_EQ((*back)->transfers[0].state, transfer_state::committed);
    EXPECT_EQ((*back)->transfers[1].epoch, UINT64_MAX);
    EXPECT_EQ((*back)->transfers[1].session.bytes[0], std::byte{9});
    EXPECT_TRUE(fails_with(record_file::open(m.records("source"), task), errc::busy));
  }
  auto file = record_file::open(m.records("source"), task);
  ASSERT_TRUE(file) << "it is free again";
  const std::string path = m.records("source") + '/' + task.text() + ".record";
  std::string text;
  {
    std::ifstream in(path);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string bad = text;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    std::ofstream(path) << bad;
    EXPECT_TRUE(fails_with(file->read(), errc::corrupt)) << bit;
  }
  for (std::size_t n = 0; n < text.size(); ++n) {
    std::ofstream(path) << text.substr(0, n);
    EXPECT_TRUE(fails_with(file->read(), errc::corrupt)) << n;
  }
  std::ofstream(path) << text;
  EXPECT_TRUE(file->read());
}

// Files of this process cannot become longer than this.
class file_size_limit {
 public:
  explicit file_size_limit(rlim_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &limit_), 0);
    const rlimit now{bytes, limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  file_size_limit(const file_size_limit &) = delete;
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, before_);
  }

 private:
  void (*before_)(int);
  rlimit limit_{};
};

// The system writes the first part of the record, and then no more.
TEST(migration_record, of_which_a_part_is_written_is_the_old_one) {
  const test_site m;
  task_id task;
  task.bytes.fill(std::byte{1});
  auto file = record_file::open(m.records("source"), task);
  ASSERT_TRUE(file) << file.error().message();
  record r{task, 5, ownership::owner, {}, "other:1 the other", {}};
  ASSERT_TRUE(file->write(r));
  r.epoch = 6;
  status written;
  {
    const file_size_limit limit(16);
    written = file->write(r);
  }
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, std::errc::file_too_large) << written.error().message();
  const auto back = file->read();
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_TRUE(*back);
  EXPECT_EQ((*back)->epoch, 5u);
}

TEST(migration_record, is_written_by_a_process_without_standard_input) {
  const test_site m;
  task_id task;
  task.bytes.fill(std::byte{1});
  auto file = record_file::open(m.records("source"), task);
  ASSERT_TRUE(file) << file.error().message();
  const stillmap::testing::no_stdin none;  // the file that is written has the descriptor 0
  const status written = file->write({task, 5, ownership::owner, {}, "other:1 the other", {}});
  ASSERT_TRUE(written) << written.error().message();
  const auto back = file->read();
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_TRUE(*back);
  EXPECT_EQ((*back)->epoch, 5u);
}

TEST(migration_record, of_all_tasks_are_listed_in_the_order_of_the_tasks) {
  const test_site m;
  std::vector<task_id> tasks;
  for (const int first : {7, 0, 255, 128, 3, 64, 16, 1}) {
    task_id task;
    task.bytes[0] = static_cast<std::byte>(first);
    tasks.push_back(task);
    auto file = record_file::open(m.records("source"), task);
    ASSERT_TRUE(file) << file.error().message();
    ASSERT_TRUE(file->write({task, static_cast<std::uint64_t>(first) + 1, {}, {}, "", {}}));
  }
  std::sort(tasks.begin(), tasks.end());
  const auto all = list_records(m.records("source"));
  ASSERT_TRUE(all) << all.error().message();
  ASSERT_EQ(all->size(), tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ((*all)[i].task, tasks[i]) << i;
    ASSERT_TRUE((*all)[i].value);
    EXPECT_EQ((*all)[i].value->epoch, static_cast<std::uint64_t>(tasks[i].bytes[0]) + 1);
  }
}

TEST(migration_record, has_one_entry_of_a_transfer) {
  const session_id one{{std::byte{1}}}, two{{std::byte{2}}};
  record r;
  r.set_transfer(one, 4, transfer_state::committed);
  r.set_transfer(two, 5, transfer_state::offered);
  r.set_transfer(two, 5, transfer_state::committed);
  r.set_transfer(one, 6, transfer_state::offered);
  ASSERT_EQ(r.transfers.size(), 2u);
  EXPECT_EQ(r.find(one)->state, transfer_state::offered);
  EXPECT_EQ(r.find(one)->epoch, 6u);
  // An offer takes the place of the epoch's earlier one; what was committed stays.
  r.set_transfer({{std::byte{3}}}, 6, transfer_state::offered);
  EXPECT_EQ(r.transfers.size(), 2u);
  EXPECT_EQ(r.find(one), nullptr);
  ASSERT_NE(r.find(two), nullptr);
}

TEST(migration_record, is_old_or_new_on_a_disk_that_loses_what_was_not_synced) {
  const test_site m;
  const std::string directory = m.records("source");  // of the lock; the record is on the disk
  const task_id task{{std::byte{3}}};
  const auto write_epoch = [&](checkpoint::simulated_disk &disk, std::uint64_t epoch) {
    auto file = record_file::open(directory, task, disk);
    if (!file) return false;
    record r{task, epoch, ownership::intent, {}, "other:1 the other", {}};
    r.set_transfer({{std::byte{9}}}, epoch, transfer_state::committed);
    return file->write(r).has_value();
  };
  for (const bool replaces : {false, true}) {
    image::check_on_disk({replaces ? "a record that replaces one" : "a new record",
                          [&](checkpoint::simulated_disk &disk) {
                            disk.make_directories(directory);
                            if (replaces) {
                              ASSERT_TRUE(write_epoch(disk, 5));
                            }
                          },
                          [&](checkpoint::simulated_disk &disk) { return write_epoch(disk, 6); },
                          [&](checkpoint::simulated_disk &disk) {
                            const auto r = read_record(directory, task, disk);
                            if (!r || (!*r && replaces)) return image::disk_state::mixture;
                            return *r && (*r)->epoch == 6 ? image::disk_state::new_one
                                                          : image::disk_state::old_one;
                          }});
  }
}

}  // namespace
}  // namespace stillmap::migration::testing
