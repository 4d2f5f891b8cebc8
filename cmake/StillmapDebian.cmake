# Debian packages, which `cpack` makes in a build folder that is configured for /usr:
#
#   stillmap         the command with its pages and completions, services, rules, and the libraries that programs load
#   libstillmap-c0   the C API
#   libstillmap-dev  headers, static libraries, files for CMake and pkg-config
#
# Each is a component of the installation; hostcuda and Python are in none.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME stillmap)
set(CPACK_PACKAGE_VENDOR Stillmap)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "stillmap built using CMake")  # CPack's default: each package has its own
set(CPACK_COMPONENTS_ALL stillmap_command stillmap_c_api stillmap_dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)

# Whoever builds a package is its maintainer, as Debian's own tools have it.
set(CPACK_PACKAGE_CONTACT "Stillmap maintainers <maintainers@stillmap.invalid>")
if(DEFINED ENV{DEBEMAIL})
  set(CPACK_PACKAGE_CONTACT "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()

set(CPACK_DEBIAN_STILLMAP_COMMAND_PACKAGE_NAME stillmap)
set(CPACK_DEBIAN_STILLMAP_COMMAND_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_STILLMAP_COMMAND_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_STILLMAP_COMMAND_PACKAGE_SUGGESTS "libucx0")  # loaded by `migrate receive --ucx` alone
set(CPACK_COMPONENT_STILLMAP_COMMAND_DESCRIPTION "control of the GPU memory of running programs
The command stillmap shows who has the memory of the machine's GPUs,
suspends and resumes tasks, saves them as images, moves them to other
processes and machines, and runs unmodified CUDA programs on Stillmap's
allocator, within a limit. The package also has services for systemd and
alerting rules for Prometheus.")

set(CPACK_DEBIAN_STILLMAP_C_API_PACKAGE_NAME libstillmap-c0)
set(CPACK_DEBIAN_STILLMAP_C_API_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_STILLMAP_C_API_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_STILLMAP_C_API_DESCRIPTION "library for CUDA virtual memory with a C API
Buffers on a GPU that grow and move while their address stays, an allocator
for device memory, and suspending and saving of a program's device memory.
This package has the shared library that programs in C and other languages
load.")

set(CPACK_DEBIAN_STILLMAP_DEV_PACKAGE_NAME libstillmap-dev)
set(CPACK_DEBIAN_STILLMAP_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_STILLMAP_DEV_PACKAGE_DEPENDS "libstillmap-c0 (= ${PROJECT_VERSION}), libexpected-dev, liblz4-dev, \
libssl-dev, liburing-dev, libxxhash-dev, libzstd-dev")
set(CPACK_DEBIAN_STILLMAP_DEV_PACKAGE_SUGGESTS "libopenmpi-dev, pkgconf, stillmap")
set(CPACK_COMPONENT_STILLMAP_DEV_DESCRIPTION "library for CUDA virtual memory (development files)
Buffers on a GPU that grow and move while their address stays, an allocator
for device memory, and suspending and saving of a program's device memory.
This package has the headers and static libraries for C++20, the C API's
header, and files for CMake and pkg-config.")

# For programs that are built as packages, and for the loader's cache.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/debian/shlibs" CONTENT "libstillmap_c 0 libstillmap-c0 (>= ${PROJECT_VERSION})\n")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/debian/triggers" CONTENT "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_STILLMAP_C_API_PACKAGE_CONTROL_EXTRA
  "${PROJECT_BINARY_DIR}/debian/shlibs;${PROJECT_BINARY_DIR}/debian/triggers")

# The license that the packages' copyright files name is that of LICENSE.
file(STRINGS "${PROJECT_SOURCE_DIR}/LICENSE" _license LIMIT_COUNT 3 REGEX "[^ ]")
if(NOT _license MATCHES "Apache License *; *Version 2.0,")
  message(FATAL_ERROR "LICENSE is not the one that cmake/debian/copyright names")
endif()

set(CPACK_STILLMAP_PREFIX "${CMAKE_INSTALL_PREFIX}")
set(CPACK_STILLMAP_SOURCE "${PROJECT_SOURCE_DIR}")
set(CPACK_PROJECT_CONFIG_FILE "${CMAKE_CURRENT_LIST_DIR}/debian/before.cmake")
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/debian/complete.cmake")
set(CPACK_POST_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/debian/without_scripts.cmake")
include(CPack)
