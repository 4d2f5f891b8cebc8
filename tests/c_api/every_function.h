// A program in C11 that calls every function of the C API.
#pragma once

#include "stillmap/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

// `stream` is a stream of the program's, `folder` one for files, `name` one that no other process uses. Returns 0, or
// the line of what is wrong, which is described in `report`.
int c_api_every_function(stillmap_stream stream, const char *folder, const char *name, char *report,
                         size_t room);

#ifdef __cplusplus
}
#endif
