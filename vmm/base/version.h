// Version of Stillmap, and the check that the compiler is set to C++20. docs/building.md
#pragma once

#if __cplusplus < 202002L
#error "Stillmap needs C++20: compile with -std=c++20, or link the CMake target, which asks for it"
#endif

// The one place of the version: CMake reads these lines.
#define STILLMAP_VERSION_MAJOR 0
#define STILLMAP_VERSION_MINOR 1
#define STILLMAP_VERSION_PATCH 0

// For comparisons: STILLMAP_VERSION >= STILLMAP_MAKE_VERSION(0, 2, 0).
#define STILLMAP_MAKE_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define STILLMAP_VERSION \
  STILLMAP_MAKE_VERSION(STILLMAP_VERSION_MAJOR, STILLMAP_VERSION_MINOR, STILLMAP_VERSION_PATCH)

// "0.1.0"
#define STILLMAP_VERSION_STRING                                                  \
  STILLMAP_DETAIL_VERSION_STRING(STILLMAP_VERSION_MAJOR, STILLMAP_VERSION_MINOR, \
                                 STILLMAP_VERSION_PATCH)
#define STILLMAP_DETAIL_VERSION_STRING(major, minor, patch) \
  STILLMAP_DETAIL_VERSION_TEXT(major, minor, patch)
#define STILLMAP_DETAIL_VERSION_TEXT(major, minor, patch) #major "." #minor "." #patch
