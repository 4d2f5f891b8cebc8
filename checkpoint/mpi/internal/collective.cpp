#include "stillmap/checkpoint/mpi/internal/collective.h"

#include <utility>

namespace stillmap::mpi {
namespace {

// A code as other machines understand it.
enum class kind : std::int32_t { none, stillmaps, cudas, systems, other };

struct report {
  std::int32_t failed = 0;
  kind category = kind::none;
  std::int32_t value = 0;
  std::uint32_t text_bytes = 0;
};

report report_of(const image::done &mine, const std::string &text) {
  if (mine) return {};
  const std::error_code &c = mine.error().why.code;
  const auto &category = c.category();
  const kind k = category == stillmap_category() ? kind::stillmaps
                 : category == cuda_category()   ? kind::cudas
                 : category == std::system_category() || category == std::generic_category()
                     ? kind::systems
                     : kind::other;
  return {1, k, c.value(), static_cast<std::uint32_t>(text.size())};
}

std::error_code code_of(const report &r) {
  switch (r.category) {
    case kind::stillmaps:
      return {r.value, stillmap_category()};
    case kind::cudas:
      return {r.value, cuda_category()};
    case kind::systems:
      return {r.value, std::system_category()};
    case kind::none:
    case kind::other:
      break;
  }
  return make_error_code(std::errc::io_error);
}

done mpi_said(int code, int rank) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return tl::unexpected(failure{rank, make_error_code(std::errc::io_error),
                                "MPI: " + std::string(text, static_cast<std::size_t>(length))});
}

tl::unexpected<failure> make_error(const char *why) {
  return tl::unexpected(failure{0, make_error_code(errc::invalid_argument), why});
}

}  // namespace

outcome<meeting> meeting::create(MPI_Comm ranks) {
  int begun = 0, ended = 0, between_groups = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  if (begun == 0 || ended != 0) return make_error("MPI is not initialised, or is finalised already");
  if (ranks == MPI_COMM_NULL) return make_error("no communicator");
  if (const auto ok = mpi_said(MPI_Comm_test_inter(ranks, &between_groups), 0); !ok) {
    return tl::unexpected(ok.error());
  }
  if (between_groups != 0) return make_error("a communicator between two groups");
  MPI_Comm own = MPI_COMM_NULL;
  if (const auto ok = mpi_said(MPI_Comm_dup(ranks, &own), 0); !ok)
    return tl::unexpected(ok.error());
  meeting m(own);
  MPI_Comm_rank(own, &m.rank_);
  MPI_Comm_size(own, &m.size_);
  return m;
}

meeting::meeting(meeting &&o) noexcept
    : own_(std::exchange(o.own_, MPI_COMM_NULL)), rank_(o.rank_), size_(o.size_) {}

meeting::~meeting() {
  if (own_ != MPI_COMM_NULL) MPI_Comm_free(&own_);
}

done meeting::agree(const image::done &mine) const {
  std::string text = mine ? std::string() : mine.error().message();
  const auto all = gather(report_of(mine, text));
  if (!all) return tl::unexpected(all.error());
  for (std::size_t i = 0; i < all->size(); ++i) {
    const report &r = (*all)[i];
    if (r.failed == 0) continue;
    text.resize(r.text_bytes);
    const int from = static_cast<int>(i);
    if (const auto ok = tell_bytes(text.data(), text.size(), from); !ok) return ok;
    return tl::unexpected(failure{from, code_of(r), std::move(text)});
  }
  return {};
}

done meeting::gather_bytes(const void *mine, void *all, std::size_t bytes) const {
  const int n = static_cast<int>(bytes);
  return mpi_said(MPI_Allgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, own_), rank_);
}

done meeting::tell_bytes(void *what, std::size_t bytes, int from) const {
  return mpi_said(MPI_Bcast(what, static_cast<int>(bytes), MPI_BYTE, from, own_), rank_);
}

}  // namespace stillmap::mpi
