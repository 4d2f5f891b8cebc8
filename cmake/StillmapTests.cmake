# The machines that hostcuda can be: those of tools/build/profiles.bzl.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../tools/build/profiles.bzl" STILLMAP_HOSTCUDA_PROFILES
  REGEX "^    \"[^\"]+\",$")
list(TRANSFORM STILLMAP_HOSTCUDA_PROFILES REPLACE "^ *\"([^\"]+)\",$" "\\1")

# One program of one kind of test, and a ctest entry for each driver it runs on.
#   stillmap_tests(KIND [CUDA] [FOLDERS folders...] [EXCLUDE patterns...] [SOURCES files...] [PROFILES names...]
#                  [DEPS libraries...])
# Its sources are all of FOLDERS (default: KIND), folders below them included, except those that match EXCLUDE
# there or below, and SOURCES. It runs on all profiles of hostcuda unless PROFILES names some.
function(stillmap_tests kind)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CUDA" "" "FOLDERS;EXCLUDE;SOURCES;PROFILES;DEPS")
  if(NOT arg_FOLDERS)
    set(arg_FOLDERS ${kind})
  endif()
  if(NOT arg_PROFILES)
    set(arg_PROFILES ${STILLMAP_HOSTCUDA_PROFILES})
  endif()
  set(patterns ${arg_FOLDERS})
  list(TRANSFORM patterns PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  list(TRANSFORM patterns APPEND "/*.cpp")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${patterns})
  get_target_property(excluded stillmap_test_checkpoint_support SOURCES)
  list(APPEND excluded ${arg_EXCLUDE})
  list(TRANSFORM excluded PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  file(GLOB_RECURSE excluded CONFIGURE_DEPENDS ${excluded})
  list(REMOVE_ITEM sources ${excluded})
  set(program stillmap_tests_${kind})
  add_executable(${program} ${sources} ${arg_SOURCES})
  stillmap_program(${program})
  set_target_properties(${program} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${stillmap_BINARY_DIR}/tests"
    OUTPUT_NAME ${kind}_program)
  target_compile_options(${program} PRIVATE -O0) # as in .bazelrc
  target_link_libraries(${program} PRIVATE
    stillmap_test_checkpoint_support stillmap_test_support ${arg_DEPS})

  # Golden files and the like are found from the source folder, as in Bazel.
  foreach(profile IN LISTS arg_PROFILES)
    string(REGEX REPLACE "[:-]" "_" slug "${profile}")
    add_test(NAME ${kind}_${slug} COMMAND ${program} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${kind}_${slug} PROPERTIES
      ENVIRONMENT "STILLMAP_DRIVER=host;STILLMAP_HOSTCUDA=$<TARGET_SONAME_FILE:stillmap_hostcuda>;HOSTCUDA=profile=${profile}"
      TIMEOUT 900
      LABELS "${kind};${profile}")
  endforeach()
  if(arg_CUDA)
    add_test(NAME ${kind}_cuda COMMAND ${program} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${kind}_cuda PROPERTIES
      ENVIRONMENT "STILLMAP_DRIVER=cuda"
      RUN_SERIAL ON
      TIMEOUT 900
      LABELS "${kind};gpu")
  endif()
endfunction()
