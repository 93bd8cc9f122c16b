# Toolchain file: builds for 64-bit Arm on a machine of another kind, with Debian's cross compiler and
# the libraries, the Rust compiler and the emulator that scripts/setup --aarch64 provides.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# CMake reads this file once more for each trial compilation: asked for once.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SPECFABRIC_AARCH64_DIR)
if(NOT SPECFABRIC_AARCH64_DIR)
  execute_process(COMMAND "${CMAKE_CURRENT_LIST_DIR}/../scripts/setup" --print-aarch64-dir
                  OUTPUT_VARIABLE SPECFABRIC_AARCH64_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT IS_DIRECTORY "${SPECFABRIC_AARCH64_DIR}/sysroot")
  message(FATAL_ERROR "no libraries for aarch64 in '${SPECFABRIC_AARCH64_DIR}': run "
                      "scripts/setup --aarch64")
endif()

# Headers and libraries of the sysroot alone, programs of this machine alone.
set(CMAKE_SYSROOT "${SPECFABRIC_AARCH64_DIR}/sysroot")
set(CMAKE_FIND_ROOT_PATH "${CMAKE_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")

set(SPECFABRIC_CARGO_TARGET aarch64-unknown-linux-gnu)
set(SPECFABRIC_RUSTC "${SPECFABRIC_AARCH64_DIR}/rustc")

# What CTest starts tests with.
find_program(SPECFABRIC_AARCH64_EMULATOR qemu-aarch64)
if(SPECFABRIC_AARCH64_EMULATOR)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${SPECFABRIC_AARCH64_EMULATOR};-L;${CMAKE_SYSROOT}")
endif()
