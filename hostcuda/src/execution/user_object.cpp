#include "hostcuda/src/execution/user_object.h"

#include <climits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/engine.h"

namespace hostcuda {

// Guarded by object_registry::mu.
struct user_object {
  CUuserObject handle = nullptr;
  void *data = nullptr;
  CUhostFn destroy = nullptr;
  std::uint64_t held = 0;       // references of the program
  std::uint64_t of_graphs = 0;  // references of graphs and of their pending launches
};

namespace {

// Lock order: innermost, because the last reference may end in any place.
struct object_registry {
  std::mutex mu;
  std::unordered_map<CUuserObject, std::shared_ptr<user_object>> all;
};

object_registry &the_objects() {
  static auto *const r = new object_registry;
  return *r;
}

// Drops references. Returns whether they were the last ones: then the caller runs the destructor,
// without the lock.
bool drop_locked(user_object &o, std::uint64_t user_object::*counter, unsigned count) {
  o.*counter -= count;
  return o.held + o.of_graphs == 0 && the_objects().all.erase(o.handle) != 0;
}

std::shared_ptr<user_object> find_object_locked(CUuserObject handle) {
  const auto found = the_objects().all.find(handle);
  return found == the_objects().all.end() ? nullptr : found->second;
}

CUresult create_object(CUuserObject *out, void *data, CUhostFn destroy, unsigned count,
                       unsigned flags) {
  if (out == nullptr || destroy == nullptr || count == 0 || count > INT_MAX ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  auto o = std::make_shared<user_object>();
  {
    engine_lock lock(the_engine().mu);
    o->handle = new_handle<CUuserObject>(7);
  }
  o->data = data;
  o->destroy = destroy;
  o->held = count;
  *out = o->handle;
  std::lock_guard<std::mutex> lock(the_objects().mu);
  the_objects().all[o->handle] = std::move(o);
  return CUDA_SUCCESS;
}

CUresult retain_object(CUuserObject handle, unsigned count) {
  if (count == 0 || count > INT_MAX) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> lock(the_objects().mu);
  const auto o = find_object_locked(handle);
  if (!o) return CUDA_ERROR_INVALID_VALUE;
  o->held += count;
  return CUDA_SUCCESS;
}

CUresult release_object(CUuserObject handle, unsigned count) {
  std::unique_lock<std::mutex> lock(the_objects().mu);
  const auto o = find_object_locked(handle);
  if (!o || count == 0 || o->held < count) return CUDA_ERROR_INVALID_VALUE;
  const bool last = drop_locked(*o, &user_object::held, count);
  lock.unlock();
  if (last) o->destroy(o->data);
  return CUDA_SUCCESS;
}

}  // namespace

object_references::object_references(std::shared_ptr<user_object> object, unsigned count)
    : object_(std::move(object)), count_(count) {}

object_references::object_references(const object_references &other)
    : object_(other.object_), count_(other.count_) {
  if (!object_) return;
  std::lock_guard<std::mutex> lock(the_objects().mu);
  object_->of_graphs += count_;
}

object_references::object_references(object_references &&other) noexcept
    : object_(std::move(other.object_)), count_(std::exchange(other.count_, 0)) {}

object_references &object_references::operator=(object_references other) noexcept {
  std::swap(object_, other.object_);
  std::swap(count_, other.count_);
  return *this;
}

object_references::~object_references() {
  if (!object_ || count_ == 0) return;
  std::unique_lock<std::mutex> lock(the_objects().mu);
  const bool last = drop_locked(*object_, &user_object::of_graphs, count_);
  lock.unlock();
  if (last) object_->destroy(object_->data);
}

void object_references::merge(object_references &&other) {
  count_ += std::exchange(other.count_, 0);
}

object_references object_references::split(unsigned count) {
  count_ -= count;
  return {object_, count};
}

CUresult take_references(CUuserObject handle, unsigned count, bool move, object_references *out) {
  if (count == 0 || count > INT_MAX) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> lock(the_objects().mu);
  auto o = find_object_locked(handle);
  if (!o || (move && o->held < count)) return CUDA_ERROR_INVALID_VALUE;
  if (move) o->held -= count;
  o->of_graphs += count;
  *out = object_references(std::move(o), count);
  return CUDA_SUCCESS;
}

void reset_user_objects() {
  std::lock_guard<std::mutex> lock(the_objects().mu);
  the_objects().all.clear();
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuUserObjectCreate, 11030, plain, 0,
               (CUuserObject * out, void *data, CUhostFn destroy, unsigned count, unsigned flags),
               { return create_object(out, data, destroy, count, flags); })

HOSTCUDA_ENTRY(cuUserObjectRetain, 11030, plain, 0, (CUuserObject object, unsigned count),
               { return retain_object(object, count); })

HOSTCUDA_ENTRY(cuUserObjectRelease, 11030, ignores_sticky, 0, (CUuserObject object, unsigned count),
               { return release_object(object, count); })
