// Several processes that are asked for their status at once.
#include "stillmap/checkpoint/control/status_query.h"
#include "stillmap/checkpoint/base/socket_channel.h"

#include <thread>
#include <vector>

#include "stillmap/checkpoint/base/socket_listener.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/task.h"

namespace stillmap::control::testing {
namespace {

using namespace std::chrono_literals;

using status_query = control_test;

void refuse_with(checkpoint::socket_channel &client, std::uint64_t value) {
  const error why{make_error_code(errc::busy), "my_server::status", "not now", value};
  const stillmap::status sent =
      client.send(static_cast<std::uint16_t>(kind::refusal), encode(why), {}, 30s, {});
  EXPECT_TRUE(sent) << sent.error().message();
}

// Regression: `stillmap task list` waited for one process after the other.
TEST_F(status_query, of_all_is_sent_before_any_response_has_come) {
  constexpr std::uint64_t servers = 3;
  std::vector<std::string> addresses;
  std::vector<checkpoint::socket_listener> listeners;
  for (std::uint64_t i = 0; i < servers; ++i) {
    addresses.push_back(new_place());
    listeners.push_back(std::move(*checkpoint::socket_listener::create(addresses.back())));
  }
  const std::string nobody = new_place();
  addresses.push_back(nobody);
  make_memory();
  start();
  addresses.push_back(where());
  std::jthread serving([&] {
    std::vector<checkpoint::socket_channel> clients;
    for (checkpoint::socket_listener &at : listeners) {
      auto c = at.accept(30s);
      if (!c || !c->receive(max_request_bytes, 30s, {})) return;
      clients.push_back(std::move(*c));
    }
    for (std::uint64_t i = 0; i < servers; ++i) refuse_with(clients[i], i);
  });
  const auto all = query_status(addresses, 30s);
  ASSERT_TRUE(all) << all.error().message();
  ASSERT_EQ(all->size(), addresses.size());
  for (std::uint64_t i = 0; i < servers; ++i) {
    ASSERT_FALSE((*all)[i].status);
    EXPECT_EQ((*all)[i].status.error().value, i) << (*all)[i].status.error().message();
    EXPECT_EQ((*all)[i].status.error().detail().subject, addresses[i]);
  }
  EXPECT_EQ((*all)[servers].status.error().code, std::errc::connection_refused);
  const auto &own = (*all)[servers + 1].status;
  ASSERT_TRUE((*all)[servers + 1].server);
  EXPECT_EQ((*all)[servers + 1].server->pid, ::getpid());
  EXPECT_FALSE((*all)[servers].server) << "nobody listens";
  ASSERT_TRUE(own) << own.error().message();
  EXPECT_EQ(own->pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(own->tags.size(), 2u);
}

TEST_F(status_query, of_a_silent_process_ends_in_time) {
  const std::vector<std::string> addresses{new_place()};
  const auto silent = checkpoint::socket_listener::create(addresses.front());
  ASSERT_TRUE(silent);
  const auto all = query_status(addresses, 20ms);
  ASSERT_TRUE(all);
  ASSERT_FALSE(all->front().status);
  EXPECT_TRUE(all->front().server);
  EXPECT_TRUE(all->front().status.error().is(errc::busy)) << all->front().status.error().message();
  EXPECT_EQ(all->front().status.error().value, 20u);
}

}  // namespace
}  // namespace stillmap::control::testing
