# What every target of ours has in common.
function(stillmap_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()

# The library of the folder it is called in, which has its name: all *.cpp of it and SOURCES. Includes
# read "stillmap/NAME/..." here, in Bazel and after install: in the build folder the name is a link to
# the source folder. Installed are the headers PUBLIC (names without .h); each of ALONE (default: all
# headers there are) compiles by itself, and without the CUDA Toolkit.
function(stillmap_library name)
  cmake_parse_arguments(PARSE_ARGV 1 _arg "" "OUTPUT_NAME" "PUBLIC;ALONE;SOURCES")
  set(_include "${PROJECT_BINARY_DIR}/include")
  file(MAKE_DIRECTORY "${_include}/stillmap")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${_include}/stillmap/${name}" SYMBOLIC)
  file(GLOB _sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  file(GLOB _headers CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
    "${CMAKE_CURRENT_SOURCE_DIR}/*.h")
  if(NOT _arg_OUTPUT_NAME)
    set(_arg_OUTPUT_NAME stillmap_${name})
  endif()
  if(NOT _arg_ALONE)
    list(TRANSFORM _headers REPLACE "\\.h$" "" OUTPUT_VARIABLE _arg_ALONE)
  endif()

  add_library(${name} ${_sources} ${_arg_SOURCES})
  add_library(stillmap::${name} ALIAS ${name})
  stillmap_target(${name})
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME ${_arg_OUTPUT_NAME}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    POSITION_INDEPENDENT_CODE ON)
  # Linked into a program or a shared library of somebody else's, its symbols stay inside there.
  if(NOT BUILD_SHARED_LIBS)
    set_target_properties(${name} PROPERTIES
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  endif()
  install(TARGETS ${name} EXPORT stillmapTargets)
  list(TRANSFORM _arg_PUBLIC APPEND ".h" OUTPUT_VARIABLE _public)
  install(FILES ${_public} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/stillmap/${name}")

  if(STILLMAP_BUILD_TESTS)
    set(_sources_alone)
    foreach(_header IN LISTS _arg_ALONE)
      set(_source "${CMAKE_CURRENT_BINARY_DIR}/alone/${_header}.cpp")
      set(_line "#include \"stillmap/${name}/${_header}.h\"\n")
      file(CONFIGURE OUTPUT "${_source}" CONTENT "${_line}${_line}" @ONLY)
      list(APPEND _sources_alone "${_source}")
    endforeach()
    add_library(${name}_headers_alone OBJECT ${_sources_alone})
    stillmap_target(${name}_headers_alone)
    target_link_libraries(${name}_headers_alone PRIVATE ${name})
  endif()
endfunction()

# A program that uses the library: the command, a benchmark, an example.
function(stillmap_program target)
  stillmap_target(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE
    stillmap::control stillmap::migration stillmap::process stillmap::handoff stillmap::snapshot
    stillmap::checkpoint stillmap::image stillmap::allocators stillmap::vmm
    ${CMAKE_DL_LIBS})
  if(TARGET hostcuda)
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/hostcuda/include")
    target_link_libraries(${target} PRIVATE CudaHeaders)
    add_dependencies(${target} hostcuda)
  endif()
endfunction()
