// Published memory as Python objects: holders, attached memory, claims.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "python/src/exports.h"
#include "python/src/guarded.h"
#include "stillmap/checkpoint/publication/attached_memory.h"
#include "stillmap/checkpoint/publication/holder.h"

namespace stillmap::python {

class python_holder : public guarded<publication::holder> {
 public:
  explicit python_holder(publication::holder h)
      : guarded("PublicationHolder", std::move(h)),
        address_(with(
            [](const publication::holder &of) -> result<std::string> { return of.address(); })) {}
  const std::string &address() const { return address_; }

 private:
  const std::string address_;
};

class python_attached : public guarded<publication::attached_memory> {
 public:
  explicit python_attached(publication::attached_memory m)
      : guarded("AttachedMemory", std::move(m)),
        ordinal_(with([](const publication::attached_memory &of) -> result<int> {
          return of.device().ordinal();
        })),
        name_(with([](const publication::attached_memory &of) -> result<std::string> {
          return of.published().name;
        })) {}

  // Bytes at an address of the memory, and one more export where asked for.
  exported_array describe(virtual_range range, bool count);

  int ordinal() const { return ordinal_; }
  const std::string &name() const { return name_; }

 private:
  const int ordinal_;
  const std::string name_;
};

// One block of attached memory. Keeps the object that has the mapping. Threads: with the GIL.
struct attached_range {
  nb::object owner;  // an AttachedMemory
  std::string tag;
  virtual_range mapped;  // from the start, without a gap
  std::size_t reserved = 0;

  python_attached &memory() const { return nb::cast<python_attached &>(owner); }
};

// The claim of a name until it is used, or given up. Threads: with the GIL.
class python_claim {
 public:
  explicit python_claim(publication::claim c) : name_(c.name()), claim_(std::move(c)) {}

  // Raises InvalidArgumentError: it has ended.
  publication::claim take(const char *operation);
  void close() { claim_.reset(); }
  bool closed() const { return !claim_; }
  const std::string &name() const { return name_; }

 private:
  const std::string name_;
  std::optional<publication::claim> claim_;
};

void bind_publication(nb::module_ &m);      // publication_bindings.cpp
void bind_attached_memory(nb::module_ &m);  // attached_memory.cpp

}  // namespace stillmap::python
