// What the ranks of an MPI job hold on their devices, saved at one moment as one set of images, and
// brought back: all of it, or nothing. docs/mpi.md
//
// For all calls here:
// Requires: MPI_Init or MPI_Init_thread was called; all ranks of `ranks` call the same, as for any
//           collective. MPI is called on the calling thread only, while others copy:
//           MPI_THREAD_FUNNELED and the main thread, or more, is enough.
// Ensures:  all ranks return the same outcome. Whatever fails on one of them, no rank waits for it
//           for ever: it says so where all meet. A rank that dies is MPI's affair: by default the
//           job is aborted.
// Errors:   of MPI itself only where its error handler returns: then ranks may differ.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1  // C++ bindings that MPI has dropped
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/mpi/failure.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::mpi {

struct save_options {
  // As snapshot::save_options: of this rank. `image.replace` of rank 0 counts, and is of the set;
  // `image.parent` is this rank's image of an earlier set; its place in the set is not used.
  snapshot::save_options snapshot;
};

struct saved_set {
  image::image_id set;
  std::vector<image::set_member> images;  // by rank
  image::written mine;
};

// Each rank's memory of these tags on its device, as an image of its own in `folder`, which all
// ranks reach (under the same path, or not). No rank reads before all are idle, no set is there
// before all images are written, and no rank returns before that is so.
// Requires: until it returns nobody changes the memory, its pages, or what is mapped.
// Ensures:  failure: no set, or the one that was there, and no new file; the memory is untouched.
//           A job that is aborted leaves no set, or the old one; the next save into the folder
//           removes what it left.
// Errors:   those of snapshot::save_set; corrupt (rank 0 does not find what another wrote).
// Cost:     as snapshot::save, and some twelve small collectives.
outcome<saved_set> save(MPI_Comm ranks, const device &d, std::span<const std::string> tags,
                        const std::string &folder, const save_options &how = {});

// Image i of the set to rank i, which has its own device and `how`. Opened and checked on all
// ranks before any reserves; reserved on all before any reads; read by all before any maps.
// Ensures: failure: nothing is reserved, mapped or created on any rank.
// Errors:  invalid_argument (another number of ranks than the set has images), busy (an address is
//          taken; the set was replaced meanwhile), and those of snapshot::restore.
// Cost:    as snapshot::restore, and some ten small collectives.
outcome<snapshot::restored> restore(MPI_Comm ranks, const device &d, const std::string &folder,
                                    const snapshot::restore_options &how = {});

}  // namespace stillmap::mpi
