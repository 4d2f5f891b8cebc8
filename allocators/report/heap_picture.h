// Draws heap maps as SVG or HTML: one heap, or several side by side at the same scale. Area is
// memory; addresses run from left to right, row by row; addresses without memory are thin lines.
// Uses no driver. docs/heap_map.md#the-picture
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stillmap/allocators/heap_map.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap {

// One heap of a picture.
struct heap_column {
  std::string title;  // the allocator: "stillmap"
  std::string note;   // the moment: "at the peak of the last iteration"
  heap_map map;
  std::size_t capacity = 0;  // bytes that the heap may commit; 0: unknown
  std::size_t wanted =
      0;  // bytes of a failed request, drawn beside the largest free piece; 0: none
};

struct heap_picture {
  std::string title, subtitle;
  std::vector<heap_column> columns;  // up to four stay readable
};

// Returns one SVG document without scripts, links or fonts, for light and dark pages. <title>
// elements describe each piece.
// Errors: out_of_memory (host memory).
result<std::string> to_svg(const heap_picture &p);
// Returns an HTML page with the same picture and a script that shows the descriptions at once.
// Loads nothing.
// Errors: out_of_memory (host memory).
result<std::string> to_html(const heap_picture &p);

}  // namespace stillmap
