// A heap as a picture that says at a glance what the memory is used for: one heap, or several
// beside each other to one scale. Area is memory; addresses run from left to right, row by row;
// stretches of addresses without memory are thin lines. Pure: knows no driver.
// docs/design.md#what-the-allocator-says-about-itself
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stillmap/allocators/heap_map.h"

namespace stillmap {

struct heap_column {
  std::string title;  // who: "stillmap"
  std::string note;   // when: "at the peak of the last iteration"
  heap_map map;
  std::size_t capacity = 0;  // the memory it may have; 0: not said
  std::size_t wanted = 0;    // a request that failed; drawn to scale beside the largest free piece
};

struct heap_picture {
  std::string title, subtitle;
  std::vector<heap_column> columns;  // at most four are readable
};

// One document: no scripts, no links, no fonts; readable on light and dark pages. What is under the
// pointer is said by <title> elements.
std::string to_svg(const heap_picture &p);
// The same as a page that says it at once (a few lines of script, nothing loaded).
std::string to_html(const heap_picture &p);

}  // namespace stillmap
