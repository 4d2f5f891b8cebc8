// User objects: reference counts with a destructor, which graphs hold.
#pragma once

#include <cuda.h>

#include <memory>

namespace hostcuda {

struct user_object;

// Some references of a graph. A copy holds as many of its own.
class object_references {
 public:
  object_references() = default;
  // Takes `count` references that are already counted.
  object_references(std::shared_ptr<user_object> object, unsigned count);
  object_references(const object_references &other);
  object_references(object_references &&other) noexcept;
  object_references &operator=(object_references other) noexcept;
  ~object_references();

  unsigned count() const { return count_; }
  // Adds references to the same object.
  void merge(object_references &&other);
  // Hands some references to the caller.
  object_references split(unsigned count);

 private:
  std::shared_ptr<user_object> object_;
  unsigned count_ = 0;
};

// Counts `count` references for a graph; with `move`, those of the program.
// Errors: INVALID_VALUE.
CUresult take_references(CUuserObject handle, unsigned count, bool move, object_references *out);

void reset_user_objects();

}  // namespace hostcuda
