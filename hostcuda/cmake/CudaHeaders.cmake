# Finds <cuda.h> and creates the target stillmap_cuda_headers. Nothing else of the CUDA Toolkit is
# needed.
#
# Search order: STILLMAP_CUDA_INCLUDE (a folder, or "pypi" for the headers that ./test downloaded),
# CUDA_HOME, /usr/local/cuda, /usr/include, and the headers that ./test or ./run downloaded.
if(TARGET stillmap_cuda_headers)
  return()
endif()

if(NOT DEFINED STILLMAP_CUDA_INCLUDE AND DEFINED ENV{STILLMAP_CUDA_INCLUDE})
  set(STILLMAP_CUDA_INCLUDE "$ENV{STILLMAP_CUDA_INCLUDE}")
endif()

set(_candidates)
if(STILLMAP_CUDA_INCLUDE AND NOT STILLMAP_CUDA_INCLUDE STREQUAL "pypi")
  list(APPEND _candidates "${STILLMAP_CUDA_INCLUDE}")
else()
  if(NOT STILLMAP_CUDA_INCLUDE STREQUAL "pypi")
    if(DEFINED ENV{CUDA_HOME})
      list(APPEND _candidates "$ENV{CUDA_HOME}/include")
    endif()
    list(APPEND _candidates /usr/local/cuda/include /usr/include)
  endif()
  list(APPEND _candidates "${CMAKE_CURRENT_LIST_DIR}/../../.cache/cuda/include")
endif()

set(_cuda_include)
foreach(_candidate IN LISTS _candidates)
  if(EXISTS "${_candidate}/cuda.h")
    get_filename_component(_cuda_include "${_candidate}" REALPATH)
    break()
  endif()
endforeach()
if(NOT _cuda_include)
  list(JOIN _candidates ", " _candidates)
  message(FATAL_ERROR "No CUDA headers (looked for cuda.h in ${_candidates}). Install the CUDA "
    "Toolkit and set CUDA_HOME, or set STILLMAP_CUDA_INCLUDE to a folder that has cuda.h: "
    "`pip install nvidia-cuda-runtime-cu12` puts one into site-packages/nvidia/cuda_runtime/include.")
endif()
message(STATUS "CUDA headers: ${_cuda_include}")

# A system include path suppresses warnings of the toolkit's headers. /usr/include already is one.
add_library(stillmap_cuda_headers INTERFACE)
if(NOT _cuda_include STREQUAL "/usr/include")
  target_include_directories(stillmap_cuda_headers SYSTEM INTERFACE "${_cuda_include}")
endif()
