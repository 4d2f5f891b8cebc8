# What every target of ours has in common.
function(stillmap_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()

# A program that uses the library: the command, a benchmark, an example.
function(stillmap_program target)
  stillmap_target(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE stillmap::checkpoint stillmap::allocators stillmap::vmm
    ${CMAKE_DL_LIBS})
  if(TARGET hostcuda)
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/hostcuda/include")
    target_link_libraries(${target} PRIVATE CudaHeaders)
    add_dependencies(${target} hostcuda)
  endif()
endfunction()
