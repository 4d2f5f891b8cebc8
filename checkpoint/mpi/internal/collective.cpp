#include "stillmap/checkpoint/mpi/internal/collective.h"

#include <utility>

namespace stillmap::mpi {
namespace {

constexpr const char *collective_op = "stillmap::mpi";

// The category of an error code, as other machines understand it.
enum class category : std::int32_t { none, stillmap, cuda, system, other };

struct report {
  std::int32_t failed = 0;
  category code_category = category::none;
  std::int32_t code_value = 0;
  std::uint32_t text_bytes = 0;
};

report report_of(const status &mine, const std::string &text) {
  if (mine) return {};
  const std::error_code &c = mine.error().code;
  const auto &of = c.category();
  const category k = of == stillmap_category() ? category::stillmap
                     : of == cuda_category()   ? category::cuda
                     : of == std::system_category() || of == std::generic_category()
                         ? category::system
                         : category::other;
  return {1, k, c.value(), static_cast<std::uint32_t>(text.size())};
}

std::error_code code_of(const report &r) {
  switch (r.code_category) {
    case category::stillmap:
      return {r.code_value, stillmap_category()};
    case category::cuda:
      return {r.code_value, cuda_category()};
    case category::system:
      return {r.code_value, std::system_category()};
    case category::none:
    case category::other:
      break;
  }
  return make_error_code(std::errc::io_error);
}

tl::unexpected<error> rank_error(int rank, std::error_code code, const char *reason,
                                 std::string cause) {
  return tl::unexpected(error{code, collective_op, reason}.with(
      {.subject = "rank " + std::to_string(rank), .cause = std::move(cause)}));
}

status check_mpi(int code, int rank) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return rank_error(rank, make_error_code(std::errc::io_error), "an MPI call failed",
                    std::string(text, static_cast<std::size_t>(length)));
}

}  // namespace

result<collective> collective::create(MPI_Comm ranks) {
  int initialized = 0, finalized = 0, between_groups = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) {
    return make_error(errc::invalid_argument, collective_op,
                      "MPI is not initialised, or is finalised");
  }
  if (ranks == MPI_COMM_NULL)
    return make_error(errc::invalid_argument, collective_op, "no communicator");
  STILLMAP_RETURN_IF_ERROR(check_mpi(MPI_Comm_test_inter(ranks, &between_groups), 0));
  if (between_groups != 0) {
    return make_error(errc::invalid_argument, collective_op,
                      "the communicator is an intercommunicator");
  }
  MPI_Comm own = MPI_COMM_NULL;
  STILLMAP_RETURN_IF_ERROR(check_mpi(MPI_Comm_dup(ranks, &own), 0));
  collective c(own);
  MPI_Comm_rank(own, &c.rank_);
  MPI_Comm_size(own, &c.size_);
  return c;
}

collective::collective(collective &&o) noexcept
    : own_(std::exchange(o.own_, MPI_COMM_NULL)), rank_(o.rank_), size_(o.size_) {}

collective::~collective() {
  if (own_ != MPI_COMM_NULL) MPI_Comm_free(&own_);
}

status collective::all_agree(const status &mine) const {
  std::string text = mine ? std::string() : mine.error().message();
  STILLMAP_ASSIGN_OR_RETURN(const auto all, gather(report_of(mine, text)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const report &r = all[i];
    if (r.failed == 0) continue;
    text.resize(r.text_bytes);
    const int from = static_cast<int>(i);
    STILLMAP_RETURN_IF_ERROR(broadcast_bytes(text.data(), text.size(), from));
    return rank_error(from, code_of(r), "the operation failed on this rank", std::move(text));
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
