#include "stillmap/checkpoint/mpi/internal/collective.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "stillmap/vmm/base/operation.h"

namespace stillmap::mpi {
namespace {

// Longer texts of errors are cut off.
constexpr std::size_t max_text_bytes = 4096;

// The category of an error code, as other machines understand it.
enum class category : std::int32_t { none, stillmap, cuda, system, other };

}  // namespace

collective::report collective::report::of(const status &mine, std::size_t text_bytes) {
  if (mine) return {};
  const std::error_code &c = mine.error().code;
  const auto &of = c.category();
  const category k = of == stillmap_category() ? category::stillmap
                     : of == cuda_category()   ? category::cuda
                     : of == std::system_category() || of == std::generic_category()
                         ? category::system
                         : category::other;
  return {1, static_cast<std::int32_t>(k), c.value(), static_cast<std::uint32_t>(text_bytes)};
}

std::error_code collective::report::code() const {
  switch (static_cast<category>(code_category)) {
    case category::stillmap:
      return {code_value, stillmap_category()};
    case category::cuda:
      return {code_value, cuda_category()};
    case category::system:
      return {code_value, std::system_category()};
    case category::none:
    case category::other:
      break;
  }
  return make_error_code(std::errc::io_error);
}

namespace {

// Without a detail where the host has no memory for it.
tl::unexpected<error> rank_error(int rank, std::error_code code, const char *reason,
                                 std::string_view cause) noexcept {
  const error e{code, operation_scope::current(), reason};
  try {
    return tl::unexpected(
        e.with({.subject = "rank " + std::to_string(rank), .cause = std::string(cause)}));
  } catch (const std::bad_alloc &) {
    return tl::unexpected(e);
  }
}

status check_mpi(int code, int rank) noexcept {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return rank_error(rank, make_error_code(std::errc::io_error), "an MPI call failed",
                    {text, static_cast<std::size_t>(length)});
}

}  // namespace

result<collective> collective::create(MPI_Comm ranks) {
  int initialized = 0, finalized = 0, between_groups = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) {
    return make_error(errc::invalid_argument, "MPI is not initialised, or is finalised");
  }
  if (ranks == MPI_COMM_NULL) return make_error(errc::invalid_argument, "no communicator");
  STILLMAP_RETURN_IF_ERROR(check_mpi(MPI_Comm_test_inter(ranks, &between_groups), 0));
  if (between_groups != 0) {
    return make_error(errc::invalid_argument, "the communicator is an intercommunicator");
  }
  MPI_Comm own = MPI_COMM_NULL;
  STILLMAP_RETURN_IF_ERROR(check_mpi(MPI_Comm_dup(ranks, &own), 0));
  collective c(own);
  MPI_Comm_rank(own, &c.rank_);
  MPI_Comm_size(own, &c.size_);
  const status allocated = attempt([&]() -> status {
    c.reports_.resize(static_cast<std::size_t>(c.size_));
    c.text_.resize(max_text_bytes);
    return {};
  });
  int everywhere = allocated ? 1 : 0;
  STILLMAP_RETURN_IF_ERROR(
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, &everywhere, 1, MPI_INT, MPI_MIN, own), c.rank_));
  if (everywhere == 0) return host_out_of_memory();
  return c;
}

collective::collective(collective &&o) noexcept
    : own_(std::exchange(o.own_, MPI_COMM_NULL)),
      rank_(o.rank_),
      size_(o.size_),
      reports_(std::move(o.reports_)),
      text_(std::move(o.text_)) {}

collective::~collective() {
  if (own_ != MPI_COMM_NULL) MPI_Comm_free(&own_);
}

status collective::all_agree(const status &mine) const {
  // Without memory for its text, the code is sent alone.
  std::size_t bytes = 0;
  (void)attempt([&]() -> status {
    if (mine) return {};
    const std::string text = mine.error().message();
    bytes = text.copy(text_.data(), text_.size());
    return {};
  });
  STILLMAP_RETURN_IF_ERROR(gather(report::of(mine, bytes), std::span(reports_)));
  for (std::size_t i = 0; i < reports_.size(); ++i) {
    const report &r = reports_[i];
    if (r.failed == 0) continue;
    const int from = static_cast<int>(i);
    bytes = std::min<std::size_t>(r.text_bytes, text_.size());
    STILLMAP_RETURN_IF_ERROR(broadcast_bytes(text_.data(), bytes, from));
    return rank_error(from, r.code(), "the operation failed on this rank", {text_.data(), bytes});
  }
  return {};
}

status collective::gather_bytes(const void *mine, void *all, std::size_t bytes) const {
  const int n = static_cast<int>(bytes);
  return check_mpi(MPI_Allgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, own_), rank_);
}

status collective::broadcast_bytes(void *bytes_of_root, std::size_t bytes, int root) const {
  return check_mpi(MPI_Bcast(bytes_of_root, static_cast<int>(bytes), MPI_BYTE, root, own_), rank_);
}

}  // namespace stillmap::mpi
