// A doubly linked list of objects that contain their own links. It allocates nothing, so giving
// something back to it cannot fail.
#pragma once

#include <cstddef>
#include <utility>

namespace stillmap {

template <class T>
struct list_links {
  T *before = nullptr;
  T *after = nullptr;
};

// The list of the objects linked through their member `links`, which it does not own: a T is in at
// most one list at a time, and is removed before it ends.
// Threads: externally synchronised. Cost: constant.
template <class T, list_links<T> T::*links>
class linked_list {
 public:
  linked_list() = default;
  linked_list(linked_list &&other) noexcept { swap(other); }
  linked_list &operator=(linked_list &&other) noexcept {
    swap(other);
    return *this;
  }
  linked_list(const linked_list &) = delete;
  ~linked_list() = default;

  bool empty() const { return first_ == nullptr; }
  std::size_t size() const { return size_; }
  T *front() const { return first_; }  // nullptr where there is none, as below
  T *back() const { return last_; }
  static T *after(const T &t) { return (t.*links).after; }
  static T *before(const T &t) { return (t.*links).before; }

  void push_back(T &t) {
    t.*links = {last_, nullptr};
    (last_ != nullptr ? (last_->*links).after : first_) = &t;
    last_ = &t;
    ++size_;
  }
  void remove(T &t) {
    const list_links<T> around = std::exchange(t.*links, {});
    (around.before != nullptr ? (around.before->*links).after : first_) = around.after;
    (around.after != nullptr ? (around.after->*links).before : last_) = around.before;
    --size_;
  }
  T *pop_front() { return popped(first_); }
  T *pop_back() { return popped(last_); }
  // Moves everything in `other` behind what is here.
  void append(linked_list &other) {
    if (other.empty()) return;
    (last_ != nullptr ? (last_->*links).after : first_) = other.first_;
    (other.first_->*links).before = last_;
    last_ = std::exchange(other.last_, nullptr);
    size_ += std::exchange(other.size_, 0);
    other.first_ = nullptr;
  }
  void swap(linked_list &other) noexcept {
    std::swap(first_, other.first_);
    std::swap(last_, other.last_);
    std::swap(size_, other.size_);
  }

 private:
  T *popped(T *t) {
    if (t != nullptr) remove(*t);
    return t;
  }

  T *first_ = nullptr;
  T *last_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace stillmap
