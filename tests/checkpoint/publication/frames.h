// The messages between a holder and its clients, field by field, for peers that lie in each; and memory small enough
// to be published a thousand times.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/publication/internal/messages.h"
#include "stillmap/vmm/context.h"
#include "tests/checkpoint/handoff/frames.h"
#include "tests/checkpoint/publication/fixture.h"

namespace stillmap::publication::testing {

using handoff::testing::end_writing;
using handoff::testing::frame;
using handoff::testing::write_frames;
using handoff::testing::write_with;

// A page at two addresses, and one of twice the size, both described as a publisher does.
struct small_memory {
  checkpoint::restored_memory mapped;
  std::vector<owned_fd> fds;
  publication::manifest manifest;
};
small_memory make_small(const device &d);

frame attach_frame(const attach_request &r);
frame publish_frame(const publication::manifest &m);
frame attached_frame(std::uint64_t generation, const publication::manifest &m);
frame listing_frame(const listing &all);
frame list_frame();
frame withdraw_frame(const std::string &name);
frame generation_frame(kind k, const char *name, std::uint64_t generation);
frame empty_frame(kind k, const char *name, std::vector<int> fds = {});

}  // namespace stillmap::publication::testing
