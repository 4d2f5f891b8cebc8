// Redirects calls of objects that the loader bound past this library: those of another namespace (dlmopen), and
// those that prefer their own libraries (RTLD_DEEPBIND). And gives variables with the names of the driver's functions
// back to the objects whose uses of them the loader bound to this library's functions.
#pragma once

#include <link.h>

#include <cstddef>

namespace stillmap::preload {

// How many objects the first namespace has.
std::size_t objects_here() noexcept;
// Binds those behind the first `known` ones. Slots that lead to this library already stay.
void bind_new_objects(std::size_t known) noexcept;

// Where a loaded library has variables with the names of the driver's functions, as loaders in the way of cuew do.
// Cheap where nothing was loaded since the last call.
void unbind_variables() noexcept;

// Binds the objects of the namespace that `member` is of.
void bind_namespace_of(const link_map *member) noexcept;

}  // namespace stillmap::preload
