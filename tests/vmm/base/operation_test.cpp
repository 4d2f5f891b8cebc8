// The name of the function that runs, in the errors that it makes.
#include "stillmap/vmm/base/operation.h"

#include <gtest/gtest.h>

#include <thread>

#include "stillmap/vmm/base/error.h"

namespace stillmap {
namespace {

TEST(operation, the_outermost_scope_names_the_errors) {
  EXPECT_STREQ(operation_scope::current(), "");
  {
    const operation_scope outer("outer");
    EXPECT_STREQ(make_error(errc::busy, "why").value().operation, "outer");
    {
      const operation_scope inner("inner");
      EXPECT_STREQ(make_system_error(1, "why", "a file").value().operation, "outer");
    }
    EXPECT_STREQ(operation_scope::current(), "outer");
  }
  EXPECT_STREQ(operation_scope::current(), "");
  const operation_scope next("next");
  EXPECT_STREQ(operation_scope::current(), "next");
}

TEST(operation, each_thread_has_its_own) {
  const operation_scope here("here");
  std::thread([] {
    EXPECT_STREQ(operation_scope::current(), "");
    const operation_scope there("there");
    EXPECT_STREQ(operation_scope::current(), "there");
  }).join();
  EXPECT_STREQ(operation_scope::current(), "here");
}

}  // namespace
}  // namespace stillmap
