# Functions for the targets of Stillmap.

# What every target has in common.
function(stillmap_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>)  # vmm/base/mutex.h
  # g++ 12 warns of copies in libstdc++'s own std::string that cannot be (GCC's bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-stringop-overflow)
  endif()
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()

# Lets an installed library or program find Stillmap's libraries in `folder`, where those are shared ones.
function(stillmap_find_beside target folder)
  if(BUILD_SHARED_LIBS)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "${folder}")
  endif()
endfunction()

# For a shared library that programs load with all of Stillmap inside: nothing leaves it but what exports.map of the
# current folder lists.
function(stillmap_closed_library target)
  set(_map "${CMAKE_CURRENT_SOURCE_DIR}/exports.map")
  target_link_options(${target} PRIVATE "-Wl,--version-script=${_map}"
    -Wl,-z,nodelete)  # blocks, callbacks, threads and the handler of forks outlive a dlclose
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS "${_map}"
    LIBRARY_OUTPUT_DIRECTORY "${stillmap_BINARY_DIR}/lib")
  stillmap_find_beside(${target} "$ORIGIN")
endfunction()

# Sets `out` to the files of a library's folder that match `pattern`, relative to the source folder,
# without those of libraries below it.
function(stillmap_files folder pattern out)
  file(GLOB_RECURSE _files CONFIGURE_DEPENDS RELATIVE "${stillmap_SOURCE_DIR}"
    "${stillmap_SOURCE_DIR}/${folder}/${pattern}")
  foreach(_component IN LISTS stillmap_COMPONENTS_KNOWN stillmap_TOOL_COMPONENTS)
    if(stillmap_FOLDER_${_component} MATCHES "^${folder}/")
      list(FILTER _files EXCLUDE REGEX "^${stillmap_FOLDER_${_component}}/")
    endif()
  endforeach()
  set(${out} "${_files}" PARENT_SCOPE)
endfunction()

# The headers of a folder that are installed.
function(stillmap_public_headers folder out)
  stillmap_files("${folder}" "*.h" _headers)
  list(JOIN stillmap_INTERNAL_FOLDERS "|" _internal)
  list(FILTER _headers EXCLUDE REGEX "/(${_internal})/")
  set(${out} "${_headers}" PARENT_SCOPE)
endfunction()

function(stillmap_install_headers)
  foreach(_header IN LISTS ARGN)
    get_filename_component(_folder "${_header}" DIRECTORY)
    install(FILES "${stillmap_SOURCE_DIR}/${_header}"
      DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/stillmap/${_folder}")
  endforeach()
endfunction()

# The library of a folder: the target stillmap_<component>, known as stillmap::<component>, static and
# not installed where it is one of the programs' own. What it uses is listed in tools/build/modules.bzl and StillmapDependencies.cmake.
function(stillmap_library folder)
  stillmap_component_of("${folder}" _component)
  set(_target stillmap_${_component})
  stillmap_files("${folder}" "*.cpp" _sources)
  list(TRANSFORM _sources PREPEND "${stillmap_SOURCE_DIR}/")
  set(_is_installed ON)
  set(_type)
  if(_component IN_LIST stillmap_TOOL_COMPONENTS)
    set(_is_installed OFF)
    set(_type STATIC)
  endif()
  add_library(${_target} ${_type} ${_sources})
  add_library(stillmap::${_component} ALIAS ${_target})
  stillmap_target(${_target})
  set_target_properties(${_target} PROPERTIES
    EXPORT_NAME ${_component}
    VERSION ${stillmap_VERSION}
    SOVERSION ${stillmap_SOVERSION}
    POSITION_INDEPENDENT_CODE ON)
  stillmap_find_beside(${_target} "$ORIGIN")
  # In a program or a shared library of somebody else's, the symbols of a static Stillmap stay inside.
  if(NOT _is_installed OR NOT BUILD_SHARED_LIBS)
    set_target_properties(${_target} PROPERTIES
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  endif()

  # A path is its include: "stillmap" is a link to the source folder.
  target_include_directories(${_target} PUBLIC
    "$<BUILD_INTERFACE:${stillmap_BINARY_DIR}/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  if(NOT _is_installed)  # as for programs
    target_include_directories(${_target} PUBLIC "${stillmap_SOURCE_DIR}"
      PRIVATE "${stillmap_SOURCE_DIR}/hostcuda/include")
  endif()
  foreach(_used IN LISTS stillmap_USES_${_component})
    target_link_libraries(${_target} PUBLIC stillmap_${_used})
  endforeach()
  foreach(_name IN LISTS stillmap_PUBLIC_${_component})
    target_link_libraries(${_target} PUBLIC ${stillmap_TARGET_${_name}})
  endforeach()
  foreach(_name IN LISTS stillmap_PRIVATE_${_component})
    target_link_libraries(${_target} PRIVATE ${stillmap_TARGET_${_name}})
  endforeach()
  foreach(_name IN LISTS stillmap_BUILD_${_component})
    target_link_libraries(${_target} PRIVATE $<BUILD_INTERFACE:${stillmap_TARGET_${_name}}>)
  endforeach()
  target_link_libraries(${_target} PRIVATE ${CMAKE_DL_LIBS})

  stillmap_public_headers("${folder}" _headers)
  if(STILLMAP_INSTALL AND _is_installed)
    install(TARGETS ${_target} EXPORT stillmap-${_component})
    install(EXPORT stillmap-${_component} NAMESPACE stillmap:: DESTINATION "${stillmap_CMAKE_DIR}"
      FILE stillmap-${_component}.cmake)
    stillmap_install_headers(${_headers})
  endif()
endfunction()

# A program that uses Stillmap: the command, a benchmark, an example.
function(stillmap_program target)
  stillmap_target(${target})
  target_include_directories(${target} PRIVATE "${stillmap_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE stillmap::checkpoint stillmap::allocators ${CMAKE_DL_LIBS})
  # From here a program finds ../lib/stillmap/hostcuda, as it does where it is installed.
  set_target_properties(${target} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${stillmap_BINARY_DIR}/bin")
  stillmap_find_beside(${target} "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  # In batches, as Bazel compiles them (tools/build/batches.bzl), except for clang-tidy and the like,
  # which look for each source. The libraries follow CMAKE_UNITY_BUILD.
  if(NOT CMAKE_EXPORT_COMPILE_COMMANDS)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endif()
  # Programs ask a driver at run time whether it is hostcuda.
  target_include_directories(${target} PRIVATE "${stillmap_SOURCE_DIR}/hostcuda/include")
  target_link_libraries(${target} PRIVATE stillmap_cuda_headers)
  if(TARGET stillmap_hostcuda)
    add_dependencies(${target} stillmap_hostcuda)
  endif()
endfunction()
