# Read by cpack before it installs anything.
if(NOT CPACK_STILLMAP_PREFIX STREQUAL "/usr")
  message(FATAL_ERROR "A package's prefix is /usr, and this folder was configured for ${CPACK_STILLMAP_PREFIX}: "
    "cmake -DCMAKE_INSTALL_PREFIX=/usr and build again")
endif()

# All times in the packages are that of the last commit: the same commit gives the same bytes.
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
  execute_process(COMMAND git -C "${CPACK_STILLMAP_SOURCE}" log -1 --format=%ct
    OUTPUT_VARIABLE _seconds OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_seconds)
    set(ENV{SOURCE_DATE_EPOCH} "${_seconds}")
  else()
    message(WARNING "No commit is known: set SOURCE_DATE_EPOCH for packages that can be reproduced")
  endif()
endif()
