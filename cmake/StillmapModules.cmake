# Reads the list of libraries, tools/build/modules.bzl. A component is the name of a library in CMake:
# the last folder of its path; stillmap_vmm_base for vmm/base, as for each base and common. Sets
#
#   stillmap_COMPONENTS_KNOWN      all components, each after those that it uses
#   stillmap_TOOL_COMPONENTS       libraries of the programs, which are not installed
#   stillmap_FOLDER_<component>    its folder
#   stillmap_USES_<component>      the components that it uses
#   stillmap_INTERNAL_FOLDERS      names of folders with headers that are not installed
#   stillmap_SIMULATOR             the name of the driver that STILLMAP_DRIVER=host means
set(_list "${CMAKE_CURRENT_LIST_DIR}/../tools/build/modules.bzl")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_list}")

function(stillmap_component_of folder out)
  get_filename_component(_name "${folder}" NAME)
  if(_name MATCHES "^(base|common)$")
    string(REPLACE "/" "_" _name "${folder}")
  endif()
  set(${out} "${_name}" PARENT_SCOPE)
endfunction()

file(STRINGS "${_list}" _line REGEX "^STILLMAP_INTERNAL_FOLDERS = ")
string(REGEX MATCHALL "\"[a-z]+\"" stillmap_INTERNAL_FOLDERS "${_line}")
list(TRANSFORM stillmap_INTERNAL_FOLDERS REPLACE "\"" "")

file(STRINGS "${_list}" _line REGEX "^STILLMAP_SIMULATOR = ")
string(REGEX REPLACE ".*\"(.*)\"" "\\1" stillmap_SIMULATOR "${_line}")

set(stillmap_COMPONENTS_KNOWN)
set(stillmap_TOOL_COMPONENTS)
set(_kind COMPONENTS_KNOWN)
file(STRINGS "${_list}" _lines REGEX "^    \"[a-z_/]+\": |^STILLMAP_TOOL_MODULES = ")
foreach(_line IN LISTS _lines)
  if(_line MATCHES "^STILLMAP_TOOL_MODULES")
    set(_kind TOOL_COMPONENTS)
    continue()
  endif()
  string(REGEX MATCHALL "\"[a-z_/]+\"" _folders "${_line}")
  list(TRANSFORM _folders REPLACE "\"" "")
  list(POP_FRONT _folders _folder)
  stillmap_component_of("${_folder}" _component)
  list(APPEND stillmap_${_kind} "${_component}")
  set(stillmap_FOLDER_${_component} "${_folder}")
  set(stillmap_USES_${_component})
  foreach(_used IN LISTS _folders)
    stillmap_component_of("${_used}" _used)
    list(APPEND stillmap_USES_${_component} "${_used}")
  endforeach()
endforeach()
if(NOT stillmap_COMPONENTS_KNOWN OR NOT stillmap_INTERNAL_FOLDERS)
  message(FATAL_ERROR "${_list} has no list of libraries")
endif()

# All of checkpoint under one name, but for what needs an MPI or UCX.
set(stillmap_CHECKPOINT ${stillmap_COMPONENTS_KNOWN})
list(FILTER stillmap_CHECKPOINT EXCLUDE REGEX "^(mpi|ucx)$")
foreach(_component IN LISTS stillmap_COMPONENTS_KNOWN)
  if(NOT stillmap_FOLDER_${_component} MATCHES "^checkpoint/")
    list(REMOVE_ITEM stillmap_CHECKPOINT "${_component}")
  endif()
endforeach()

# Sets `out` to the components named, with all that they use, in the order of the list.
function(stillmap_resolve_components out)
  set(_wanted ${ARGN})
  foreach(_name IN LISTS _wanted)
    if(NOT _name STREQUAL "checkpoint" AND NOT _name IN_LIST stillmap_COMPONENTS_KNOWN)
      list(JOIN stillmap_COMPONENTS_KNOWN ", " _known)
      message(FATAL_ERROR "Stillmap has no component ${_name}; there are: ${_known}, and checkpoint "
        "for all of checkpoint/ but mpi and ucx")
    endif()
  endforeach()
  if("checkpoint" IN_LIST _wanted)
    list(APPEND _wanted ${stillmap_CHECKPOINT})
  endif()
  set(_resolved)
  set(_backwards ${stillmap_COMPONENTS_KNOWN})
  list(REVERSE _backwards)
  foreach(_component IN LISTS _backwards)
    if(_component IN_LIST _wanted)
      list(APPEND _wanted ${stillmap_USES_${_component}})
      list(PREPEND _resolved "${_component}")
    endif()
  endforeach()
  set(${out} "${_resolved}" PARENT_SCOPE)
endfunction()
