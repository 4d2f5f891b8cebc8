// The objects that are loaded in the program's first namespace, in the order in which the loader searches them.
#pragma once

#include "preload/lookup/elf_object.h"

namespace stillmap::preload {

// Whether an address lies in this library.
bool is_ours(const void *address) noexcept;

// Whether code lies at an address of an object of the first namespace.
bool is_code(const void *address) noexcept;

// Whether the address lies in any object of the first namespace.
bool in_first_namespace(const void *address) noexcept;

// Whether the object in which the address lies defines this function itself.
bool defines(const void *address, const char *function) noexcept;

// The function as the first object has it that is loaded behind the one in which `address` lies, this library
// left out; nullptr: none has. With a null address, of all objects.
void *find_behind(const void *address, const char *function) noexcept;
// As what is loaded behind this library has it.
void *find_behind_us(const char *function) noexcept;

// Calls visit(object, context) for each object.
void for_each_object(void (*visit)(const elf_object &, void *context), void *context);

}  // namespace stillmap::preload
