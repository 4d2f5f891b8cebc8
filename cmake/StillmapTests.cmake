# The machines that hostcuda can be. A new profile is one line here and one in
# tools/build/profiles.bzl; every test that touches a driver then runs on it.
set(STILLMAP_HOSTCUDA_PROFILES
  h200
  a100
  multi:2
  wsl2
  mig
  vgpu-no-vmm
  old-driver-450
)

# One program of one kind of test, and a ctest entry for each driver it runs on.
#   stillmap_tests(KIND [PROFILES names...] [CUDA])
# The sources are KIND/*.cpp; where there are none, there is no target.
function(stillmap_tests kind)
  cmake_parse_arguments(arg "CUDA" "" "PROFILES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${kind}/*.cpp")
  if(NOT sources)
    return()
  endif()
  set(program ${kind}_program)
  add_executable(${program} ${sources})
  stillmap_program(${program})
  target_compile_options(${program} PRIVATE -O0) # as in .bazelrc
  target_link_libraries(${program} PRIVATE stillmap_test_support)

  # Relative to nothing: golden files and the like are found from the source folder, as in Bazel.
  foreach(profile IN LISTS arg_PROFILES)
    string(REGEX REPLACE "[:-]" "_" slug "${profile}")
    add_test(NAME ${kind}_${slug} COMMAND ${program} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${kind}_${slug} PROPERTIES
      ENVIRONMENT "STILLMAP_DRIVER=host;STILLMAP_HOSTCUDA=$<TARGET_SONAME_FILE:hostcuda>;HOSTCUDA=profile=${profile}"
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
