// An operator suspends, resumes and saves the memory of a program that knows of nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/context.h"
#include "tests/preload/operated_program.h"
#include "tests/support/unique_name.h"

namespace stillmap {
namespace {

using namespace std::chrono_literals;
using testing::expect_refused;
using testing::expect_suspended;
using testing::operated_program;
using testing::whole_program;

class operated : public testing::operated_test {};

TEST_F(operated, stands_still_while_it_is_suspended) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  EXPECT_TRUE(p->works());
  const auto before = p->as_operator().status();
  ASSERT_TRUE(before) << before.error().message();
  ASSERT_EQ(before->tags.size(), 1u);
  EXPECT_EQ(before->tags[0].tag, "program");
  const std::uint64_t mapped = before->tags[0].mapped_bytes;
  EXPECT_GE(mapped, 3 * p->constant_bytes());

  const auto suspended = p->as_operator().suspend(whole_program);
  ASSERT_TRUE(suspended) << suspended.error().message();
  EXPECT_GE(suspended->bytes, 3 * p->constant_bytes());
  const std::uint64_t free_bytes = p->number("free");
  const std::uint64_t rounds = p->number("rounds"), host_rounds = p->number("host_rounds");
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(p->number("rounds"), rounds);
  EXPECT_GT(p->number("host_rounds"), host_rounds) << "threads without driver calls go on";
  const auto during = p->as_operator().status();
  ASSERT_TRUE(during) << during.error().message();
  EXPECT_EQ(during->tags[0].mapped_bytes, 0u);
  EXPECT_GE(during->tags[0].suspended_bytes, suspended->bytes);
  EXPECT_GE(during->memory_free, before->memory_free + suspended->bytes);

  const auto resumed = p->as_operator().resume("program");
  ASSERT_TRUE(resumed) << resumed.error().message();
  EXPECT_TRUE(p->works());
  EXPECT_EQ(p->ask("constant"), "right");
  EXPECT_LT(p->number("free"), free_bytes);
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, is_suspended_again_and_again) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  for (int i = 0; i < 20; ++i) {
    const auto suspended = p->as_operator().suspend(whole_program);
    ASSERT_TRUE(suspended) << suspended.error().message();
    const auto again = p->as_operator().suspend(whole_program);
    ASSERT_FALSE(again);
    EXPECT_TRUE(again.error().is(errc::busy)) << again.error().message();
    ASSERT_TRUE(p->as_operator().resume("program"));
  }
  EXPECT_TRUE(p->works());
  EXPECT_EQ(p->ask("constant"), "right");
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, is_saved_and_goes_on) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  const auto saved = p->as_operator().snapshot({.tags = {"program"}, .path = file("program.smi")});
  ASSERT_TRUE(saved) << saved.error().message();
  EXPECT_TRUE(p->works());
  EXPECT_EQ(p->ask("constant"), "right");
  // Another process finds the bytes; at other addresses, because these may be in use there.
  auto d = driver::load(driver_library());
  ASSERT_TRUE(d) << d.error().message();
  const auto device = device::open(**d, 0);
  ASSERT_TRUE(device) << device.error().message();
  snapshot::restore_options elsewhere;
  elsewhere.relocate = true;
  const auto restored = snapshot::restore(*device, file("program.smi"), elsewhere);
  ASSERT_TRUE(restored) << restored.error().message();
  device_address constant(0);
  for (std::size_t i = 0; i < restored->original_ranges.size(); ++i) {
    const virtual_range &was = restored->original_ranges[i];
    const std::uint64_t offset = p->constant_address() - was.begin.value();
    if (offset >= was.bytes) continue;
    constant = device_address(restored->memory.layout().blocks[i].range.begin.value() + offset);
  }
  std::vector<unsigned char> bytes(p->constant_bytes());
  const context_guard current(**d, device->context());
  ASSERT_TRUE((*d)->copy_to_host(bytes.data(), constant, bytes.size()));
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0xA5), static_cast<long>(bytes.size()));
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, goes_back_to_what_was_saved) {
  const auto p = start();
  const std::string image = file("program.smi");
  ASSERT_EQ(p->ask("write 66"), "right");
  ASSERT_TRUE(p->as_operator().snapshot({.tags = {"program"}, .path = image}));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(p->ask("write 7"), "right");
    const auto back = p->as_operator().restore({.path = image, .all = true});
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_GE(back->bytes, 3 * p->constant_bytes());
    EXPECT_EQ(p->ask("holds 66"), "right");
  }
  ASSERT_EQ(p->ask("work"), "ok");
  EXPECT_TRUE(p->works());
  ASSERT_EQ(p->ask("rest"), "ok");
  const auto suspended = p->as_operator().suspend(whole_program);
  ASSERT_TRUE(suspended) << suspended.error().message();
  const auto refused = p->as_operator().restore({.path = image, .all = true});
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::busy)) << refused.error().message();
  ASSERT_TRUE(p->as_operator().resume("program"));
  EXPECT_EQ(p->ask("holds 66"), "right");
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, started_again_has_the_bytes_of_the_first_run_at_its_addresses) {
  const std::string image = file("program.smi");
  std::uint64_t address = 0;
  {
    const auto first = start();
    ASSERT_EQ(first->ask("write 66"), "right");
    address = first->constant_address();
    ASSERT_TRUE(first->as_operator().snapshot({.tags = {"program"}, .path = image}));
    first->tell("exit");
    EXPECT_EQ(first->wait(), 0);
  }
  const auto second = start();
  ASSERT_EQ(second->constant_address(), address);
  EXPECT_EQ(second->ask("constant"), "right") << "it begins anew";
  ASSERT_EQ(second->ask("allocate 3"), "ok");  // beyond the image
  const auto back = second->as_operator().restore({.tags = {"program"}, .path = image});
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(second->ask("holds 66"), "right");
  ASSERT_EQ(second->ask("work"), "ok");
  EXPECT_TRUE(second->works());
  EXPECT_EQ(second->end(), 0);
}

TEST_F(operated, started_again_is_refused_what_it_has_no_memory_for) {
  const std::string image = file("program.smi");
  {
    const auto first = start();
    ASSERT_EQ(first->ask("allocate 40"), "ok");
    ASSERT_TRUE(first->as_operator().snapshot({.tags = {"program"}, .path = image}));
  }
  const auto refuses = [&](const operated_program &p) {
    const auto back = p.as_operator().restore({.path = image, .all = true});
    ASSERT_FALSE(back);
    EXPECT_TRUE(back.error().is(errc::invalid_argument)) << back.error().message();
    EXPECT_NE(back.error().message().find("nothing is mapped"), std::string::npos)
        << back.error().message();
    EXPECT_EQ(p.ask("constant"), "right");
    ASSERT_EQ(p.ask("work"), "ok");
    EXPECT_TRUE(p.works());
  };
  refuses(*start());
  // Elsewhere.
  const auto moved = start(1, {"STILLMAP_PRELOAD_ADDRESS=0x180000000000"});
  EXPECT_GE(moved->constant_address(), 0x1800'0000'0000u);
  refuses(*moved);
}

TEST_F(operated, has_its_usual_addresses_where_it_is_given_none_that_could_be) {
  const std::uint64_t usual = start()->constant_address();
  for (const char *const wrong : {"0x123", "elsewhere", "0x400000000000", "-1", "0"}) {
    const auto p = start(1, {std::string("STILLMAP_PRELOAD_ADDRESS=") + wrong});
    EXPECT_EQ(p->constant_address(), usual) << wrong;
  }
}

// Fails each driver call of a request once, whoever makes it: the program rests meanwhile. `repair` is given what
// the request returned. Afterwards the program works and has its bytes, each time.
template <class Prepare, class Request, class Repair>
void fail_each_call(const operated_program &p, Prepare prepare, Request request, Repair repair) {
  std::uint64_t calls = 0;
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    ASSERT_LT(n, 10'000u);
    ASSERT_EQ(p.ask("rest"), "ok");
    ASSERT_NO_FATAL_FAILURE(prepare());
    ASSERT_EQ(p.ask("fail " + std::to_string(n)), "ok");
    const auto done = request();
    const bool fired = p.number("fired") != 0;
    ASSERT_NO_FATAL_FAILURE(repair(done));
    ASSERT_EQ(p.ask("work"), "ok");
    ASSERT_TRUE(p.works());
    ASSERT_EQ(p.ask("constant"), "right");
    if (!fired) break;
    ++calls;
  }
  EXPECT_GT(calls, 10u);
}

TEST_F(operated, goes_on_wherever_a_call_of_its_restoration_fails) {
  if (has_several_devices()) GTEST_SKIP() << "as with one";
  const auto p = start();
  const control::restore_request saved{.path = file("program.smi"), .all = true};
  ASSERT_TRUE(p->as_operator().snapshot({.tags = {"program"}, .path = saved.path}));
  fail_each_call(
      *p, [&] { ASSERT_EQ(p->ask("write 7"), "right"); },
      [&] { return p->as_operator().restore(saved); },
      [&](const auto &back) {
        if (back) return;
        const bool partly = back.error().message().find("unspecified") != std::string::npos;
        EXPECT_TRUE(partly || p->ask("holds 7") == "right") << back.error().message();
        ASSERT_TRUE(p->as_operator().restore(saved));
      });
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, keeps_its_memory) {
  const auto p = start();
  const auto sent = p->as_operator().handoff({.tags = {"program"}, .to = "@nobody"});
  ASSERT_FALSE(sent);
  EXPECT_TRUE(sent.error().is(errc::not_supported)) << sent.error().message();
  EXPECT_EQ(p->ask("constant"), "right");
}

TEST_F(operated, goes_on_where_its_work_does_not_end) {
  const auto p = start_impatient();
  ASSERT_EQ(p->ask("work"), "ok");
  ASSERT_EQ(p->ask("queue"), "ok");
  expect_refused(*p);
  expect_refused(*p);
  ASSERT_EQ(p->ask("end_queue"), "ok");
  expect_suspended(*p);
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, goes_on_where_work_of_another_context_does_not_end) {
  for (const char *const create : {"cuCtxCreate", "cuCtxCreate_v2"}) {
    SCOPED_TRACE(create);
    const auto p = start_impatient();
    ASSERT_EQ(p->ask("work"), "ok");
    const std::string stream = p->ask(std::string("queue_in_context ") + create);
    expect_refused(*p);
    ASSERT_EQ(p->ask("end_queue " + stream), "ok");
    expect_suspended(*p);
  }
}

TEST_F(operated, goes_on_where_a_call_does_not_end) {
  const auto p = start_impatient();
  ASSERT_EQ(p->ask("work"), "ok");
  ASSERT_EQ(p->ask("queue"), "ok");
  ASSERT_EQ(p->ask("wait"), "ok");
  expect_refused(*p);
  ASSERT_EQ(p->ask("end_queue"), "ok");
  expect_suspended(*p);
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, ends_its_capture_first) {
  const auto p = start();
  ASSERT_EQ(p->ask("capture"), "ok");
  const auto suspended = p->as_operator().suspend(whole_program);
  ASSERT_FALSE(suspended);
  EXPECT_TRUE(suspended.error().is(errc::busy)) << suspended.error().message();
  ASSERT_EQ(p->ask("end_capture"), "ok") << "it is valid";
  ASSERT_EQ(p->ask("work"), "ok");
  expect_suspended(*p);
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, goes_on_wherever_a_driver_call_fails) {
  if (has_several_devices()) GTEST_SKIP() << "as with one";
  const auto p = start();
  fail_each_call(
      *p, [] {}, [&] { return p->as_operator().suspend(whole_program); },
      [&](const auto &suspended) {
        if (suspended) {
          ASSERT_TRUE(p->as_operator().resume("program"));
        }
      });
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, stays_suspended_wherever_a_call_of_its_resumption_fails) {
  if (has_several_devices()) GTEST_SKIP() << "as with one";
  const auto p = start();
  fail_each_call(
      *p, [&] { ASSERT_TRUE(p->as_operator().suspend(whole_program)); },
      [&] { return p->as_operator().resume("program"); },
      [&](const auto &resumed) {
        if (!resumed) {
          ASSERT_TRUE(p->as_operator().resume("program"));
        }
      });
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, leaves_nothing_behind_wherever_it_is_killed) {
  const std::string machine = "HOSTCUDA=profile=h200,machine=" + testing::unique_name("operated");
  // The device is one of this test's processes, which see each other's memory.
  if (has_several_devices()) GTEST_SKIP() << "as with one";
  const auto witness = start(1, {machine});
  const std::uint64_t free_bytes = witness->number("free");
  std::uint64_t killed = 0;
  for (std::uint64_t n = 1;; ++n) {
    ASSERT_LT(n, 10'000u);
    const auto p = start(1, {machine});
    ASSERT_EQ(p->ask("die " + std::to_string(n)), "ok");
    const auto suspended = p->as_operator().suspend(whole_program);
    if (suspended) {
      (void)p->as_operator().resume("program");
      if (p->ask("rounds") != "") break;
    }
    EXPECT_EQ(p->wait(), 128 + SIGKILL);
    ++killed;
    ASSERT_EQ(witness->number("free"), free_bytes) << "call " << n;
  }
  EXPECT_GT(killed, 5u);
  ASSERT_EQ(witness->ask("work"), "ok");
  expect_suspended(*witness);
}

TEST_F(operated, leaves_its_share_to_others_while_it_is_suspended) {
  if (has_several_devices()) GTEST_SKIP() << "as with one";
  std::uint64_t needed = 0;
  {
    const auto alone = start();
    const auto status = alone->as_operator().status();
    ASSERT_TRUE(status) << status.error().message();
    needed = status->tags[0].mapped_bytes;
  }
  const std::vector<std::string> shared{
      "HOSTCUDA=profile=h200,machine=" + testing::unique_name("operated"),
      "STILLMAP_PRELOAD_SHARE=" + file("quota") + ":" + std::to_string(needed + needed / 2)};
  const auto first = start(1, shared);
  ASSERT_TRUE(first->as_operator().suspend(whole_program));
  const auto second = start(1, shared);
  ASSERT_NE(second->constant_address(), 0u) << "it has got its memory";
  const auto early = first->as_operator().resume("program");
  ASSERT_FALSE(early);
  EXPECT_TRUE(early.error().is(errc::out_of_memory)) << early.error().message();
  EXPECT_EQ(second->ask("constant"), "right");
  EXPECT_EQ(second->end(), 0);
  const auto resumed = first->as_operator().resume("program");
  ASSERT_TRUE(resumed) << resumed.error().message();
  ASSERT_EQ(first->ask("work"), "ok");
  EXPECT_TRUE(first->works());
  EXPECT_EQ(first->ask("constant"), "right");
  EXPECT_EQ(first->end(), 0);
}

TEST_F(operated, ends_while_it_is_suspended) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  ASSERT_TRUE(p->as_operator().suspend(whole_program));
  p->tell("exit");
  EXPECT_EQ(p->wait(), 0);
}

TEST_F(operated, has_children_that_end) {
  const auto p = start();
  ASSERT_EQ(p->ask("work"), "ok");
  EXPECT_EQ(p->number("fork"), 0u);
  ASSERT_TRUE(p->as_operator().suspend(whole_program));
  EXPECT_EQ(p->number("fork"), 0u);
  ASSERT_TRUE(p->as_operator().resume("program"));
  EXPECT_TRUE(p->works());
}

TEST_F(operated, stands_still_while_one_of_its_devices_is_suspended) {
  if (!has_several_devices()) GTEST_SKIP() << "one device";
  const auto p = start(2);
  ASSERT_EQ(p->ask("work"), "ok");
  ASSERT_TRUE(p->as_operator(0).suspend(whole_program));
  ASSERT_TRUE(p->as_operator(1).suspend(whole_program));
  ASSERT_TRUE(p->as_operator(0).resume("program"));
  const std::uint64_t rounds = p->number("rounds");
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(p->number("rounds"), rounds);
  ASSERT_TRUE(p->as_operator(1).resume("program"));
  EXPECT_TRUE(p->works());
  EXPECT_EQ(p->end(), 0);
}

TEST_F(operated, is_not_served_unless_it_is_asked_for) {
  const operated_program p(environment({}), 1);
  EXPECT_FALSE(p.as_operator().status());
}

}  // namespace
}  // namespace stillmap
