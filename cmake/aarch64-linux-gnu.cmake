# Builds for AArch64 Linux on another machine, with Debian's cross compiler, and runs the results under qemu's user
# mode. SLUICE_SYSROOT holds AArch64 packages, unpacked; scripts/check-arm makes it.
set(SLUICE_SYSROOT "${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-sysroot" CACHE PATH "AArch64 libraries and headers")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SLUICE_SYSROOT)
get_filename_component(CMAKE_SYSROOT "${SLUICE_SYSROOT}" ABSOLUTE)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu max -L "${CMAKE_SYSROOT}")

# Programs are those of the building machine; everything else comes from the sysroot only.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_DIR} "")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR}
    "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")
