// What the allocator decides by numbers: how much free memory it holds, how many addresses stay aliased, what is
// small, which programs repeat themselves. Pure: maps nothing, and knows no arena. Internal.
//
// Each number says what it trades, and which program of bench/traces/, tools/workloads.py or tests/allocators pins
// it. Sizes of tables and of slabs are with them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace stillmap::policy {

inline constexpr std::size_t MiB = std::size_t{1} << 20, GiB = std::size_t{1} << 30;

// ---- free memory ----

// Slack: free memory up to which growth creates pages rather than moves free ones. By the peak of live bytes.
// Less: pages move for ever in what varies. More: memory held. gpt2_large, serving_kv_blocks.
inline constexpr std::size_t slack_divisor = 40;
// What has moved, by the peak, before the slack grows: a loop moves less before it rests. gpt2_large_checkpointed.
inline constexpr double free_moves = 0.25;
// The most of that, by the peak: what never repeats needs no more (cross_streams), a loop on several streams,
// whose peaks come at different times, does (exact_random_loop_streams).
inline constexpr double max_extra_slack = 0.75, max_extra_slack_of_loops = 64;
// The number of moved pages halves every so many allocations: a program may change. The soak test.
inline constexpr std::uint64_t moved_half_life = std::uint64_t{1} << 20;

inline std::size_t least_slack(std::size_t live_peak, std::size_t page) {
  return std::max(live_peak / slack_divisor, 2 * page);
}

// Bytes. `alone`: no other stream has had memory. `moved`: bytes of pages that were moved lately. A loop on one stream
// gets its pages back without a driver call, so that it needs no more. Elsewhere the slack grows with what has
// moved, twice what is beyond free_moves, squared: what is not known as a loop yet holds little, and what never
// repeats comes to rest with what its fragments need.
inline std::size_t slack(std::size_t live_peak, std::size_t page, bool repeats, bool alone,
                         std::size_t moved) {
  const std::size_t least = least_slack(live_peak, page);
  if (repeats && alone) return least;
  const auto peak = static_cast<double>(std::max(live_peak, page));
  const double part = std::max(2 * (static_cast<double>(moved) / peak - free_moves), 0.0);
  const double most = repeats ? max_extra_slack_of_loops : max_extra_slack;
  return least + static_cast<std::size_t>(std::min(part * part, most) * peak);
}

// Whether not even the least slack fits: then freed blocks are merged before anything is searched, so that blocks
// lie densely (diffusion_unet in 1.003 times its peak instead of 1.005), and fewer are found whole.
inline bool is_short(std::size_t ceiling, std::size_t live_peak, std::size_t page) {
  return ceiling < live_peak + least_slack(live_peak, page);
}

// ---- addresses ----

// Aliased addresses above which an arena drops its aliases: of a loop, which comes to rest when all its places
// are mapped at once, in pages (exact_random_loop, 440 GiB of addresses for 24 GiB of memory); elsewhere, where
// they are of little use, per committed byte, and in any case (cross_streams).
inline constexpr std::size_t max_aliased_pages_of_loop = std::size_t{1} << 19;
inline constexpr std::size_t max_alias_ratio = 1, min_max_aliased = GiB / 4;

inline std::size_t max_aliased(bool repeats, std::size_t committed, std::size_t page) {
  return repeats ? max_aliased_pages_of_loop * page : max_alias_ratio * committed + min_max_aliased;
}

// Arenas that reserve twice the device's memory at once: addresses end, and cost host memory. The bytes with
// which the others, and the addresses of small blocks, begin. ended_streams_test.
inline constexpr std::uint64_t arenas_with_ample_addresses = 8;
inline constexpr std::size_t first_reservation = 64 * MiB;
// Blocks up to so many bytes have addresses of their own: a small one that stays would keep a page from every
// later large block (pinholes: 1.74 times its peak with 1 MiB); their pages are not for others (recorded steps of
// 0.45 and 0.57 GiB: 1.068 and 1.039 with 1 MiB). cross_streams is at rest least with 384 KiB.
inline constexpr std::size_t largest_small = 384 << 10;
// Uncommitted extents that are compared for the fewest missing pages, where memory is not short. cross_streams.
inline constexpr std::size_t max_compared_fits = 256;

// ---- several streams ----

// Free memory is searched before pending blocks are queried while there are at most so many, and so small a part
// of the live bytes: queries cost time, pending blocks memory. cross_streams, the soak test.
inline constexpr std::size_t max_pending_unasked = 256;
inline constexpr std::uint64_t pending_unasked_divisor = 16;
// Arenas beyond which no page is lent, since a search for lent pages locks all. private_pool_test.
inline constexpr std::size_t max_lending_arenas = 32;
// New streams after which destroyed ones are looked for. ended_streams_test.
inline constexpr std::size_t streams_between_searches = 64;
// Times that on_out_of_memory is called for one request, which would never end where it always returns true.
inline constexpr int max_callback_rounds = 16;

// ---- programs that repeat themselves ----

// Of the latest 32 searched requests, how many must have come before, and of 64, up to how many say that a program
// varies. training_random_lengths, gpt2_medium_variable.
inline constexpr unsigned min_recurring_of_32 = 24, max_recurring_of_varying_64 = 40;
// For how many requests they must, by what never came before, and at most: in a loop all that is new comes in the
// first iteration. training_random_lengths held 1.6 times its peak without.
inline constexpr std::uint64_t new_per_recurring = 8, max_recurring_asked = 4096;

// ---- chunks, where the device cannot map pages ----

// The size of a chunk that requests share: less fragmentation, or fewer driver calls. As PyTorch's allocator.
inline std::size_t shared_chunk_bytes(std::size_t request) {
  return request <= MiB ? 2 * MiB : request < 10 * MiB ? 20 * MiB : 0;
}

}  // namespace stillmap::policy
