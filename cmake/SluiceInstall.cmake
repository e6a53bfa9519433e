# Install rules: the program with its shell completions, the static library with its public headers and its CMake
# and pkg-config files, the built-in models, the licence.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(sluice_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/sluice")

# What users of the static library must find, from the LIBS of the modules. Header-only libraries are compiled in.
get_property(sluice_libs GLOBAL PROPERTY SLUICE_LIBS)
set(SLUICE_FIND_DEPENDENCIES "find_dependency(Threads)\n")
set(SLUICE_PC_REQUIRES "")
set(needs_pkg_config OFF)
foreach(lib IN LISTS sluice_libs)
  if(lib MATCHES "^PkgConfig::(.+)$")
    set(prefix "${CMAKE_MATCH_1}")
    if(NOT ${prefix}_MODULE_NAME)
      message(FATAL_ERROR "cannot export ${lib}: use pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET module)")
    endif()
    if(NOT needs_pkg_config)
      string(APPEND SLUICE_FIND_DEPENDENCIES "find_dependency(PkgConfig)\n")
      set(needs_pkg_config ON)
    endif()
    string(APPEND SLUICE_FIND_DEPENDENCIES
      "sluice_find_module(${prefix} ${${prefix}_MODULE_NAME})\n")
    list(APPEND SLUICE_PC_REQUIRES "${${prefix}_MODULE_NAME}")
  elseif(lib MATCHES "^(fmt|hwy)::")
    string(APPEND SLUICE_FIND_DEPENDENCIES "find_dependency(${CMAKE_MATCH_1})\n")
    string(REPLACE "hwy" "libhwy" module "${CMAKE_MATCH_1}")
    list(APPEND SLUICE_PC_REQUIRES "${module}")
  else()
    message(FATAL_ERROR "SluiceInstall.cmake does not know how users of the library find ${lib}")
  endif()
endforeach()
list(REMOVE_DUPLICATES SLUICE_PC_REQUIRES)
list(JOIN SLUICE_PC_REQUIRES ", " SLUICE_PC_REQUIRES)

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/sluiceConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/package/sluiceConfig.cmake" INSTALL_DESTINATION "${sluice_cmake_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/sluiceConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
# The pkg-config file finds its prefix from where it lies, so that an installed tree can be moved.
file(RELATIVE_PATH SLUICE_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" SLUICE_PC_PREFIX "${SLUICE_PC_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/sluice.pc.in" "${PROJECT_BINARY_DIR}/package/sluice.pc" @ONLY)

install(TARGETS sluice EXPORT sluice ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT sluice NAMESPACE sluice:: FILE sluiceTargets.cmake DESTINATION "${sluice_cmake_dir}")
install(FILES "${PROJECT_BINARY_DIR}/package/sluiceConfig.cmake" "${PROJECT_BINARY_DIR}/package/sluiceConfigVersion.cmake"
  DESTINATION "${sluice_cmake_dir}")
install(FILES "${PROJECT_BINARY_DIR}/package/sluice.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/sluice" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.hpp")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/models/" DESTINATION "${CMAKE_INSTALL_DATADIR}/sluice/models"
  FILES_MATCHING PATTERN "*.gguf" PATTERN "README.md")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/NOTICE" "${PROJECT_SOURCE_DIR}/README.md"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}")

if(TARGET sluice_cli)
  install(TARGETS sluice_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # src/cli writes them beside the program.
  if(NOT CMAKE_CROSSCOMPILING)
    set(completions_dir "${PROJECT_BINARY_DIR}/completions")
    install(FILES "${completions_dir}/bash/sluice" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
    install(FILES "${completions_dir}/zsh/_sluice" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
    install(FILES "${completions_dir}/fish/sluice.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
  endif()
endif()
