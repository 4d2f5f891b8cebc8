// clang-format off
// What the edits of operators.py use; it stands in front of each source that holds mutants.
#ifndef STILLMAP_MUTANTS
#define STILLMAP_MUTANTS
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#include <functional>
#include <type_traits>
#include <utility>
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wdangling-else"
#pragma GCC diagnostic ignored "-Wempty-body"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wextra"
namespace [[gnu::visibility("hidden")]] stillmap_mutants {
inline int active = 0;
inline unsigned char *reached = nullptr;  // a byte a mutant, in a file that processes share
[[gnu::constructor(101)]] static void choose() {
  if (const char *number = std::getenv("STILLMAP_MUTANT")) active = std::atoi(number);
  const char *file = std::getenv("STILLMAP_MUTANTS_REACHED");
  if (file == nullptr || reached != nullptr) return;
  const int fd = ::open(file, O_RDWR | O_CLOEXEC);
  void *shared = ::mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (shared != MAP_FAILED) reached = static_cast<unsigned char *>(shared);
  ::close(fd);
}
constexpr bool is(int number) {
  if (std::is_constant_evaluated()) return false;
  if (reached != nullptr) reached[number] = 1;
  return active == number;
}
struct plus_assign {
  template <class A, class B>
  constexpr decltype(auto) operator()(A &&a, B &&b) const {
    return a += std::forward<B>(b);
  }
};
struct minus_assign {
  template <class A, class B>
  constexpr decltype(auto) operator()(A &&a, B &&b) const {
    return a -= std::forward<B>(b);
  }
};
template <int N, class Other>
struct operation {};
template <int N, class Other, class Operand>
struct half {
  Operand &&operand;
};
#define STILLMAP_MUTANTS_BINARY(op)                                            \
  template <class A, int N, class Other>                                       \
  constexpr half<N, Other, A> operator op(A &&a, operation<N, Other>) {        \
    return {std::forward<A>(a)};                                               \
  }                                                                            \
  template <int N, class Other, class A, class B>                              \
  constexpr decltype(auto) operator op(half<N, Other, A> a, B &&b) {           \
    if (is(N)) return Other()(std::forward<A>(a.operand), std::forward<B>(b)); \
    return std::forward<A>(a.operand) op std::forward<B>(b);                   \
  }
STILLMAP_MUTANTS_BINARY(<)
STILLMAP_MUTANTS_BINARY(<=)
STILLMAP_MUTANTS_BINARY(>)
STILLMAP_MUTANTS_BINARY(>=)
STILLMAP_MUTANTS_BINARY(==)
STILLMAP_MUTANTS_BINARY(!=)
STILLMAP_MUTANTS_BINARY(+)
STILLMAP_MUTANTS_BINARY(-)
STILLMAP_MUTANTS_BINARY(*)
STILLMAP_MUTANTS_BINARY(/)
#define STILLMAP_MUTANTS_ASSIGN(op)                                     \
  template <int N, class Other, class B>                                \
  constexpr half<N, Other, B> operator op(operation<N, Other>, B &&b) { \
    return {std::forward<B>(b)};                                        \
  }                                                                     \
  template <class A, int N, class Other, class B>                       \
  constexpr decltype(auto) operator op(A &&a, half<N, Other, B> b) {    \
    if (is(N)) return Other()(a, std::forward<B>(b.operand));           \
    return a op std::forward<B>(b.operand);                             \
  }
STILLMAP_MUTANTS_ASSIGN(+=)
STILLMAP_MUTANTS_ASSIGN(-=)
}  // namespace gnu::visibility("hidden")]]stillmap_mutants
#endif
