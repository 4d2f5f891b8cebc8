// Redirects calls of objects that the loader bound past this library: those of another namespace (dlmopen), and
// those that prefer their own libraries (RTLD_DEEPBIND).
#pragma once

#include <link.h>

namespace stillmap::preload {

// Binds the objects of the first namespace. Slots that lead to this library already stay.
void bind_first_namespace() noexcept;

// Binds the objects of the namespace that `member` is of.
void bind_namespace_of(const link_map *member) noexcept;

}  // namespace stillmap::preload
