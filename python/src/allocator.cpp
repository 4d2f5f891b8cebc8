#include "python/src/allocator.h"

#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/memory_figures.h"
#include "stillmap/allocators/device_share.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

// Where an exception of a callback goes: to the Python code that called allocate() on this thread.
// Null: C code did, and the exception is reported as unraisable.
thread_local constinit kept_exception *python_caller = nullptr;

// For the duration of a call into an allocator.
class python_call {
 public:
  explicit python_call(kept_exception &to) : before_(std::exchange(python_caller, &to)) {}
  python_call(const python_call &) = delete;
  python_call &operator=(const python_call &) = delete;
  ~python_call() { python_caller = before_; }

 private:
  kept_exception *before_;
};

}  // namespace

bool out_of_memory_callback::operator()(std::size_t bytes) {
  if (!interpreter_alive()) return false;
  const held_gil held;
  // The wrapper may be closed while the callback runs.
  const nb::object callee = function;
  if (!callee.is_valid() || callee.is_none()) return false;
  PyObject *const answer =
      PyObject_CallFunction(callee.ptr(), "K", static_cast<unsigned long long>(bytes));
  const int again = answer == nullptr ? -1 : PyObject_IsTrue(answer);
  Py_XDECREF(answer);
  if (again >= 0) return again != 0;
  if (python_caller != nullptr) {
    python_caller->take(callee);
  } else {
    PyErr_WriteUnraisable(callee.ptr());
  }
  return false;
}

python_allocator::python_allocator(int ordinal, const std::string &tag,
                                   caching_allocator_options options,
                                   std::optional<share_settings> share, nb::object on_out_of_memory)
    : ordinal_(ordinal), tag_(tag) {
  options.tag = tag;
  if (!on_out_of_memory.is_none()) {
    if (PyCallable_Check(on_out_of_memory.ptr()) == 0) {
      throw nb::type_error("on_out_of_memory is not callable");
    }
    callback_ = std::make_shared<out_of_memory_callback>(
        out_of_memory_callback{std::move(on_out_of_memory)});
    options.on_out_of_memory = [callback = callback_](std::size_t bytes) {
      return (*callback)(bytes);
    };
  }
  heap_ = value_of(without_gil([&]() -> result<std::shared_ptr<caching_allocator>> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    if (share && !share->name.empty()) {
      STILLMAP_ASSIGN_OR_RETURN(options.quota, share_device(*share, d));
    }
    has_quota_ = options.quota != nullptr;
    STILLMAP_ASSIGN_OR_RETURN(auto made, caching_allocator::create(d, std::move(options)));
    std::shared_ptr<caching_allocator> heap(std::move(made));
    count_allocator(heap);
    return heap;
  }));
}

std::shared_ptr<caching_allocator> python_allocator::use(const char *operation) const {
  if (!heap_) raise_invalid(operation, "the allocator is closed");
  return heap_;
}

std::uint64_t python_allocator::allocate(std::size_t bytes, stream_ref s,
                                         allocate_options options) {
  auto heap = use("CachingAllocator.allocate");
  kept_exception of_callback;
  const auto block = without_gil([&] {
    const python_call call(of_callback);
    auto made = heap->allocate(bytes, s, options);
    heap.reset();  // here, where the last reference may wait
    return made;
  });
  if (block) return reinterpret_cast<std::uintptr_t>(*block);
  if (of_callback) of_callback.rethrow(exception_of(block.error()));
  raise(block.error());
}

void python_allocator::close() {
  if (callback_) callback_->function.reset();
  std::shared_ptr<caching_allocator> last = std::move(heap_);
  heap_ = nullptr;
  if (!last) return;
  // A forked child does not touch what is the parent's.
  if (forked_after_use()) {
    new std::shared_ptr<caching_allocator>(std::move(last));
    return;
  }
  const released_gil released;
  if (for_c_ != nullptr) for_c_->heap.store(nullptr);
  last.reset();
}

c_allocator *python_allocator::for_c() {
  if (for_c_ == nullptr) {
    const auto heap = use("CachingAllocator.c_param");
    for_c_ = new c_allocator;
    for_c_->device = ordinal_;
    for_c_->may_wait = has_quota_;
    for_c_->heap.store(heap);
  }
  return for_c_;
}

std::optional<share_settings> share_of(const char *operation,
                                       const std::optional<std::string> &name,
                                       std::optional<std::uint64_t> limit) {
  if (limit && (!name || name->empty())) {
    raise_invalid(operation, "share_limit is given without the name of a quota: give share, too");
  }
  if (limit == std::uint64_t{0}) raise_invalid(operation, "share_limit must not be 0");
  if (!name) return std::nullopt;
  return share_settings{*name, limit.value_or(0)};
}

}  // namespace stillmap::python
