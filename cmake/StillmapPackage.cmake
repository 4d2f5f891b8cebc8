# What find_package(stillmap) and pkg-config read: installed, and relative to where it is installed.
include(CMakePackageConfigHelpers)

# Without COMPONENTS find_package(stillmap) takes all that is built but mpi and ucx, which need an MPI and UCX.
set(_default ${stillmap_BUILT})
list(REMOVE_ITEM _default mpi torch ucx)
set(STILLMAP_PACKAGE_DEFAULT "${_default}")
set(_exported ${stillmap_BUILT})
list(REMOVE_ITEM _exported torch)
set(STILLMAP_PACKAGE_BUILT "${_exported}")
set(STILLMAP_PACKAGE_USES)
foreach(_component IN LISTS _exported)
  set(_uses ${stillmap_USES_${_component}})
  if(_component STREQUAL "c_api" AND NOT BUILD_SHARED_LIBS)
    set(_uses)  # all of it is inside
  endif()
  string(APPEND STILLMAP_PACKAGE_USES "set(_stillmap_uses_${_component} \"${_uses}\")\n")
endforeach()
set(STILLMAP_PACKAGE_CHECKPOINT)
if(TARGET stillmap_checkpoint)
  set(STILLMAP_PACKAGE_CHECKPOINT "${stillmap_CHECKPOINT}")
endif()

set(STILLMAP_HOSTCUDA_FILE "${CMAKE_INSTALL_LIBDIR}/stillmap/hostcuda/libcuda.so.1")
set(STILLMAP_TORCH_FILE "${stillmap_PLUGIN_DIR}/libstillmap_torch.so")
configure_package_config_file(cmake/stillmapConfig.cmake.in
  "${PROJECT_BINARY_DIR}/package/stillmapConfig.cmake"
  INSTALL_DESTINATION "${stillmap_CMAKE_DIR}"
  PATH_VARS STILLMAP_HOSTCUDA_FILE STILLMAP_TORCH_FILE)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/stillmapConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/package/stillmapConfig.cmake"
  "${PROJECT_BINARY_DIR}/package/stillmapConfigVersion.cmake"
  cmake/StillmapDependencies.cmake
  DESTINATION "${stillmap_CMAKE_DIR}")

# One pkg-config file for each library, stillmap-<component>, and `stillmap` for all of them but mpi and ucx.
# The prefix is where the file lies, however many folders below it.
file(RELATIVE_PATH _up "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" _up "${_up}")
set(_pc_head "prefix=\${pcfiledir}/${_up}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}
hostcuda=\${libdir}/stillmap/hostcuda/libcuda.so.1
")

function(stillmap_pc name description requires requires_private cflags libs libs_private)
  set(_text "${_pc_head}\nName: ${name}\nDescription: ${description}\nVersion: ${PROJECT_VERSION}\n")
  foreach(_field "Requires:${requires}" "Requires.private:${requires_private}" "Cflags:${cflags}"
          "Libs:${libs}" "Libs.private:${libs_private}")
    string(REGEX MATCH "^([A-Za-z.]+):(.*)$" _ "${_field}")
    if(NOT CMAKE_MATCH_2 STREQUAL "")
      string(APPEND _text "${CMAKE_MATCH_1}: ${CMAKE_MATCH_2}\n")
    endif()
  endforeach()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/package/${name}.pc" CONTENT "${_text}" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/package/${name}.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endfunction()

# Include folders of a target, as options, but for those that the compiler has by itself.
function(stillmap_pc_includes target out)
  set(_options "")
  get_target_property(_folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
  foreach(_folder IN LISTS _folders)
    if(_folder AND NOT _folder MATCHES "[$]<" AND
       NOT _folder IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
      string(APPEND _options " -I${_folder}")
    endif()
  endforeach()
  set(${out} "${_options}" PARENT_SCOPE)
endfunction()

foreach(_component IN LISTS stillmap_BUILT)
  if(_component MATCHES "^(torch|c_api)$")
    continue()  # loaded, never linked; below
  endif()
  set(_requires ${stillmap_USES_${_component}})
  list(TRANSFORM _requires PREPEND "stillmap-")
  set(_requires_private)
  set(_cflags "-I\${includedir}")
  set(_libs "-L\${libdir} -lstillmap_${_component}")
  set(_libs_private)
  get_target_property(_type stillmap_${_component} TYPE)
  if(_type STREQUAL "INTERFACE_LIBRARY")
    set(_libs "")  # headers only
  endif()
  foreach(_name IN LISTS stillmap_PRIVATE_${_component})
    list(APPEND _requires_private "${stillmap_PC_${_name}}")
  endforeach()
  if("expected" IN_LIST stillmap_PUBLIC_${_component})
    stillmap_pc_includes(tl::expected _includes)
    string(APPEND _cflags "${_includes}")
    string(APPEND _libs " -pthread")
    set(_libs_private "-ldl")
  endif()
  if("mpi" IN_LIST stillmap_PUBLIC_${_component})
    stillmap_pc_includes(MPI::MPI_CXX _includes)
    string(APPEND _cflags "${_includes}")
    get_target_property(_mpi MPI::MPI_CXX INTERFACE_LINK_LIBRARIES)
    list(FILTER _mpi INCLUDE REGEX "^/")
    list(JOIN _mpi " " _mpi)
    string(APPEND _libs " ${_mpi}")
  endif()
  # A static library has to be linked with all that it uses, and there is no other here.
  if(NOT BUILD_SHARED_LIBS)
    list(APPEND _requires ${_requires_private})
    set(_requires_private)
    string(STRIP "${_libs} ${_libs_private}" _libs)
    set(_libs_private)
  endif()
  list(JOIN _requires " " _requires)
  list(JOIN _requires_private " " _requires_private)
  stillmap_pc(stillmap-${_component} "Stillmap: ${stillmap_FOLDER_${_component}}" "${_requires}"
    "${_requires_private}" "${_cflags}" "${_libs}" "${_libs_private}")
endforeach()

# For programs in C, with all of Stillmap inside.
if(TARGET stillmap_c_api)
  stillmap_pc(stillmap-c "Stillmap: the C API" "" "" "-I\${includedir}"
    "-L\${libdir} -lstillmap_c" "")
endif()

set(_cxx ${_default})
list(REMOVE_ITEM _cxx c_api)
list(TRANSFORM _cxx PREPEND "stillmap-" OUTPUT_VARIABLE _requires)
list(JOIN _requires " " _requires)
stillmap_pc(stillmap "${PROJECT_DESCRIPTION}" "${_requires}" "" "" "" "")
if(TARGET stillmap_checkpoint)
  list(TRANSFORM stillmap_CHECKPOINT PREPEND "stillmap-" OUTPUT_VARIABLE _requires)
  list(JOIN _requires " " _requires)
  stillmap_pc(stillmap-checkpoint "Stillmap: all of checkpoint but mpi and ucx" "${_requires}" "" "" "" "")
endif()

# A static library does not know where it was installed: programs with it look where it was configured for.
if(STILLMAP_BUILD_HOSTCUDA AND NOT BUILD_SHARED_LIBS)
  install(CODE "
    set(configured \"${CMAKE_INSTALL_PREFIX}\")
    set(folder \"${stillmap_SIMULATOR_DIR}\")"
    COMPONENT stillmap_notice)
  install(CODE [[
    if(NOT CMAKE_INSTALL_PREFIX STREQUAL configured)
      message(STATUS "Stillmap was configured for ${configured}, so your programs look for hostcuda in ${folder}: "
        "set STILLMAP_HOSTCUDA for them, or build with -DCMAKE_INSTALL_PREFIX=${CMAKE_INSTALL_PREFIX}")
    endif()]]
    COMPONENT stillmap_notice)
endif()
