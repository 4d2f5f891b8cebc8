// The objects that are loaded in the program's first namespace, in the order in which the loader searches them.
#pragma once

#include "preload/functions/abi.h"
#include "preload/lookup/elf_object.h"

namespace stillmap::preload {

// Whether an address lies in this library.
bool is_ours(const void *address) noexcept;

// Whether code lies at an address of an object of the first namespace.
bool is_code(const void *address) noexcept;

// Whether the address lies in any object of the first namespace.
bool in_first_namespace(const void *address) noexcept;

// Whether the address lies in an object that the loader searches before this library: the program, or an interposer
// that was loaded first.
bool is_before_us(const void *address) noexcept;
// Whether it lies in the program itself.
bool is_in_program(const void *address) noexcept;

// Whether the address lies in an interposer behind this library, which defines the function itself: what it looks up
// is what it passes its calls on to.
bool wraps_behind_us(const void *address, const char *function) noexcept;

// Where the loader finds a name in the first namespace if it leaves out this library, as far as it is a function or a
// variable.
struct definition {
  void *function = nullptr;
  void *variable = nullptr;
};
definition find_first(const char *name) noexcept;

// The function as the first object has it that is loaded behind the one in which `address` lies, this library
// left out; nullptr: none has. With a null address, of all objects.
void *find_behind(const void *address, const char *function) noexcept;
// As what is loaded behind this library has it.
STILLMAP_FOR_SERVICE void *find_behind_us(const char *function) noexcept;

// How many objects have been loaded since the program began.
unsigned long long objects_loaded() noexcept;

// Calls visit(object, context) for each object.
void for_each_object(void (*visit)(const elf_object &, void *context), void *context);

}  // namespace stillmap::preload
