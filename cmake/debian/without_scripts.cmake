# Run by cpack after packing. CPack gives a package with a shared library scripts that call ldconfig; the trigger that
# the package has does that once for all packages, and policy wants nothing else. They are taken out again.
find_program(_dpkg_deb dpkg-deb REQUIRED)
foreach(_package IN LISTS CPACK_PACKAGE_FILES)
  set(_folder "${CPACK_TEMPORARY_DIRECTORY}/repacked")
  file(REMOVE_RECURSE "${_folder}")
  execute_process(COMMAND "${_dpkg_deb}" --raw-extract "${_package}" "${_folder}" COMMAND_ERROR_IS_FATAL ANY)
  if(NOT EXISTS "${_folder}/DEBIAN/postinst")
    continue()
  endif()
  file(REMOVE "${_folder}/DEBIAN/postinst" "${_folder}/DEBIAN/postrm")
  execute_process(COMMAND "${_dpkg_deb}" --root-owner-group --uniform-compression -Zxz --build "${_folder}" "${_package}"
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()
