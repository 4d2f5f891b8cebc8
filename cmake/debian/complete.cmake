# Run by cpack between installation and packing: what Debian's policy asks of a package's files, beyond what
# every installation has.
find_program(_gzip gzip REQUIRED)
find_program(_pkg_config pkg-config)

# Where the system's units are: in Debian 12 still outside of /usr.
set(_units lib/systemd/system)
if(_pkg_config)
  execute_process(COMMAND "${_pkg_config}" --variable=systemdsystemunitdir systemd
    OUTPUT_VARIABLE _found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_found)
    string(REGEX REPLACE "^/" "" _units "${_found}")
  endif()
endif()

function(move from to)
  if(EXISTS "${from}" AND NOT from STREQUAL to)
    get_filename_component(_above "${to}" DIRECTORY)
    file(MAKE_DIRECTORY "${_above}")
    file(RENAME "${from}" "${to}")
  endif()
endfunction()

function(compress)
  foreach(_file IN LISTS ARGN)
    execute_process(COMMAND "${_gzip}" -9n "${_file}" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endfunction()

string(TIMESTAMP CHANGED "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH
foreach(_component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER "${_component}" _upper)
  set(PACKAGE "${CPACK_DEBIAN_${_upper}_PACKAGE_NAME}")
  set(_root "${CPACK_TEMPORARY_DIRECTORY}/${_component}")

  set(_doc "${_root}/usr/share/doc/${PACKAGE}")
  file(MAKE_DIRECTORY "${_doc}")
  configure_file("${CMAKE_CURRENT_LIST_DIR}/copyright" "${_doc}/copyright" COPYONLY)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/changelog.in" "${_doc}/changelog" @ONLY)
  compress("${_doc}/changelog")
  file(GLOB _pages "${_root}/usr/share/man/man*/*.[1-8]")
  compress(${_pages})

  move("${_root}/usr/lib/systemd/system" "${_root}/${_units}")
  move("${_root}/usr/share/zsh/site-functions" "${_root}/usr/share/zsh/vendor-completions")

  # Whatever the umask was.
  file(GLOB_RECURSE _all LIST_DIRECTORIES true "${_root}/*")
  foreach(_path IN LISTS _all)
    if(IS_DIRECTORY "${_path}")
      file(CHMOD "${_path}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    elseif(NOT IS_SYMLINK "${_path}" AND NOT _path MATCHES "/usr/bin/")
      file(CHMOD "${_path}" PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    endif()
  endforeach()
endforeach()
