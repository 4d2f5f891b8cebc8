// The allocator object of the PyTorch that is loaded, seen by its virtual functions. Internal.
//
// PyTorch's classes differ from version to version, and nothing here is compiled against them. A function's
// place in the object's table is that of the function with its exported name, which has the types of its
// arguments in it, in the table of CUDAPluggableAllocator: a class with the same base class, whose names are
// exported. A version that has another function has another name, which is not found.
#pragma once

#include <cstddef>

#include "stillmap/vmm/base/error.h"

namespace stillmap::torch_plugin {

class allocator_object {
 public:
  // Errors: not_supported (PyTorch is not loaded, or has no such object).
  static result<allocator_object> current();

  void *self() const { return self_; }
  // An exported function or object of PyTorch or of the CUDA runtime that it has loaded; nullptr: none.
  template <class To>
  To find(const char *name) const {
    return reinterpret_cast<To>(address_of(name));
  }
  // A virtual function by the exported name of CUDAPluggableAllocator's. nullptr: there is none.
  template <class To>
  To function(const char *name) const {
    void **const at = entry(name);
    return at == nullptr ? nullptr : reinterpret_cast<To>(*at);
  }
  // Puts a function into the object's table; the object gets a table of its own. Calls that other threads
  // make meanwhile take the old one or the new one. Errors: not_supported (function() has none).
  status replace(const char *name, void *mine) const;
  // Whether an object is a CUDAPluggableAllocator.
  bool pluggable(const void *object) const;

 private:
  allocator_object(void *library, void *self) : library_(library), self_(self) {}
  void *address_of(const char *name) const;
  void **entry(const char *name) const;  // in the object's table

  void *library_;
  void *self_;
};

}  // namespace stillmap::torch_plugin
