// Saves the device memory of all ranks of an MPI job at one moment as one set of images, and
// restores it completely or not at all. docs/mpi.md
//
// For all calls here:
// Requires: MPI_Init or MPI_Init_thread was called; all ranks of `ranks` make the same call, as for
//           any collective. MPI is called on the calling thread only, while other threads copy:
//           MPI_THREAD_FUNNELED on the main thread is enough.
// Ensures:  all ranks return the same result, and no rank waits forever after a failure of another.
//           MPI decides what happens when a rank dies: by default the job is aborted.
// Errors:   detail().subject is "rank N", the lowest rank that failed, and detail().cause the
//           message of its error; the code compares like that rank's code, on all machines. Errors
//           of MPI itself can only be returned where its error handler returns; ranks may then
//           differ.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1  // the deprecated C++ bindings
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
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::mpi {

struct save_options {
  // The options of this rank. `image.replace` and `force` of rank 0 apply to the set; `image.parent` is this
  // rank's image of an earlier set; its set fields are ignored.
  snapshot::save_options snapshot;
};

struct saved_set {
  image::image_id set;
  std::vector<image::set_member> images;  // by rank
  image::written mine;                    // this rank's image
};

// Saves each rank's memory of its tags on its device as one image in `folder`, which all ranks must
// reach (paths may differ). No rank reads memory before all are idle; the set exists once all
// images are written; no rank returns before that.
// Requires: until it returns, nothing changes the memory, its pages or its mappings.
// Ensures:  the memory is unchanged. Failure: no set, or the old one, and no new file. An aborted
//           job leaves no set, or the old one; the next save into the folder removes the rest.
// Errors:   those of snapshot::save_set; corrupt (rank 0 does not find another rank's image).
// Cost:     as snapshot::save, and about twelve small collectives.
result<saved_set> save(MPI_Comm ranks, const device &d, std::span<const std::string> tags,
                       const std::string &folder, const save_options &options = {});

// Restores image i of the set on rank i, with that rank's device and options. All ranks open and
// check their images before any reserves addresses, reserve before any reads contents, and read
// before any maps.
// Ensures: failure: nothing is reserved, mapped or created on any rank.
// Errors:  invalid_argument (another number of ranks than of images in the set), busy (an address
//          is in use; the set was replaced meanwhile), and those of snapshot::restore.
// Cost:    as snapshot::restore, and about ten small collectives.
result<snapshot::restored> restore(MPI_Comm ranks, const device &d, const std::string &folder,
                                   const snapshot::restore_options &options = {});

}  // namespace stillmap::mpi
