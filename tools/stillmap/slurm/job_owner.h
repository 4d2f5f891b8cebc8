// Whose a job of Slurm's is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>

namespace stillmap::tool {

// The users of the processes that the job's slurmstepd processes, which are this user's or root's, have started on this
// machine. Empty: there is none.
std::set<uid_t> job_owners(std::uint32_t job);

}  // namespace stillmap::tool
