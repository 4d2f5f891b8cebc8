// The name of the public function that runs on this thread, for its errors. docs/errors.md#in-the-sources
#pragma once

namespace stillmap {

// Until its end, errors that this thread makes carry the name. Within another scope it does nothing: a public
// function that is called from inside another keeps the outer name, because an error names what the user called.
// The name is a string literal: errors keep the pointer. It takes no memory.
// A thread that works for a function takes the name along: operation_scope scope(current() of the starter).
class [[nodiscard]] operation_scope {
 public:
  explicit operation_scope(const char *name) noexcept;
  ~operation_scope();
  operation_scope(const operation_scope &) = delete;
  operation_scope &operator=(const operation_scope &) = delete;

  // "" outside of all scopes.
  static const char *current() noexcept;

 private:
  const char *const outer_;
};

}  // namespace stillmap
