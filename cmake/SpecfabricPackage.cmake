# `cmake --install build`, and `cpack --config build/CPackConfig.cmake`: a Debian package. What lies
# where is said by scripts/install, which takes along what the system does not have (libtorch).

install(CODE "
  execute_process(COMMAND \"${PROJECT_SOURCE_DIR}/scripts/install\" --build \"${PROJECT_BINARY_DIR}\"
                          --destdir \"\$ENV{DESTDIR}\" --prefix \"\${CMAKE_INSTALL_PREFIX}\"
                  COMMAND_ERROR_IS_FATAL ANY)")

# The rest is of Debian's packages alone: units name /usr/bin.
set(package_files "${PROJECT_SOURCE_DIR}/cmake/package")
install(FILES "${package_files}/specfabric@.service" DESTINATION lib/systemd/system
        COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES "${package_files}/copyright" DESTINATION share/doc/specfabric
        COMPONENT debian EXCLUDE_FROM_ALL)
install(DIRECTORY "${package_files}/examples" DESTINATION share/doc/specfabric
        COMPONENT debian EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};specfabric;ALL;/"
                                 "${PROJECT_BINARY_DIR};specfabric;debian;/")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES OFF)
set(CPACK_PACKAGE_NAME specfabric)
set(CPACK_PACKAGE_CONTACT "The SpecFabric authors <specfabric@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "lossless speculative decoding for large language models")
set(CPACK_PACKAGE_DESCRIPTION
    "Draft workers propose trees of tokens, target groups verify a tree in one forward pass, and a
gateway speaks the OpenAI API. The units are specfabric@gateway, @target, @rank and @draft.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Drivers of RDMA devices, which no program names.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ibverbs-providers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${package_files}/postinst" "${package_files}/prerm"
                                       "${package_files}/postrm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
