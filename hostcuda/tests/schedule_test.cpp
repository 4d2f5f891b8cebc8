#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class schedule_test : public machine_test {
 protected:
  // Runs three streams with six operations each and returns their order. In a seeded schedule all
  // operations run on the waiting thread, so they do not run concurrently.
  std::vector<int> order_with(const std::string &schedule) {
    start("profile=h200,schedule=" + schedule);
    journal j;
    std::vector<CUstream> streams = {make_stream(), make_stream(), make_stream()};
    std::vector<note> notes(18);
    for (int i = 0; i < 18; ++i) {
      auto &n = notes[static_cast<std::size_t>(i)];
      n = {&j, i};
      EXPECT_EQ(cuLaunchHostFunc(streams[static_cast<std::size_t>(i) % 3], write_note, &n),
                CUDA_SUCCESS);
    }
    EXPECT_TRUE(j.order.empty());
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    return j.order;
  }
};

TEST_F(schedule_test, TheSameSeedGivesTheSameOrder) {
  const auto first = order_with("seeded:11");
  EXPECT_EQ(first.size(), 18U);
  EXPECT_EQ(order_with("seeded:11"), first);
}

TEST_F(schedule_test, DifferentSeedsGiveDifferentOrders) {
  const auto first = order_with("seeded:1");
  int different = 0;
  for (int seed = 2; seed < 10; ++seed) {
    if (order_with("seeded:" + std::to_string(seed)) != first) ++different;
  }
  EXPECT_GE(different, 7);
}

TEST_F(schedule_test, EverySeedKeepsTheOrderWithinAStream) {
  for (int seed = 0; seed < 10; ++seed) {
    int last[3] = {-1, -1, -1};
    for (const int i : order_with("seeded:" + std::to_string(seed))) {
      EXPECT_GT(i, last[i % 3]);
      last[i % 3] = i;
    }
  }
}

TEST_F(schedule_test, SeededRunsNothingWithoutAWait) {
  start("profile=h200,schedule=seeded:3");
  const CUstream s = make_stream();
  journal j;
  note n{&j, 1};
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &n), CUDA_SUCCESS);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(j.order.empty());
  while (cuStreamQuery(s) == CUDA_ERROR_NOT_READY) {
  }
  EXPECT_EQ(j.order.size(), 1U);
}

TEST_F(schedule_test, SeededRespectsEvents) {
  for (int seed = 0; seed < 8; ++seed) {
    start("profile=h200,schedule=seeded:" + std::to_string(seed));
    const CUstream a = make_stream();
    const CUstream b = make_stream();
    const CUevent e = make_event();
    journal j;
    note first{&j, 1};
    note second{&j, 2};
    ASSERT_EQ(cuLaunchHostFunc(a, write_note, &first), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, a), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(b, write_note, &second), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
    EXPECT_EQ(j.order, (std::vector<int>{1, 2}));
  }
}

TEST_F(schedule_test, SeveralHostThreadsMayWaitInASeededSchedule) {
  start("profile=h200,schedule=seeded:5");
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
      const CUstream s = make_stream();
      for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(cuLaunchHostFunc(
                      s, [](void *p) { static_cast<std::atomic<int> *>(p)->fetch_add(1); }, &ran),
                  CUDA_SUCCESS);
        if (i % 5 == 0) {
          ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
        }
      }
      ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    });
  }
  for (auto &t : threads) t.join();
  EXPECT_EQ(ran.load(), 60);
}

TEST_F(schedule_test, JitterRunsEverythingInStreamOrder) {
  start("profile=h200,schedule=jitter:9");
  const CUstream s = make_stream();
  journal j;
  std::vector<note> notes(10);
  for (int i = 0; i < 10; ++i) {
    auto &n = notes[static_cast<std::size_t>(i)];
    n = {&j, i};
    ASSERT_EQ(cuLaunchHostFunc(s, write_note, &n), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(j.order.size(), 10U);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(j.order[static_cast<std::size_t>(i)], i);
}

TEST_F(schedule_test, ResetDropsWorkThatIsHeld) {
  const CUstream s = make_stream();
  journal j;
  note n{&j, 1};
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchHostFunc(s, write_note, &n), CUDA_SUCCESS);
  start("profile=h200,schedule=threads");
  EXPECT_TRUE(j.order.empty());
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace hostcuda_tests
