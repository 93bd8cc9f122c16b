# Every outside library, under one name each. Nothing else in the project calls find_package.

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(gflags REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(FlatBuffers REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_program(SPECFABRIC_FLATC flatc REQUIRED)

# UCX: the system's, or the one under UCX_ROOT (a tree with include/ and lib/), from the environment or
# the cache, or the Python wheel's. Asked for by hand, because its own CMake package is not in every
# build of UCX.
set(UCX_ROOT "$ENV{UCX_ROOT}" CACHE PATH "UCX installation to use instead of the system's")
if(SPECFABRIC_UCX_WHEEL AND NOT UCX_ROOT)
  execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/setup" --print-ucx-dir
                  OUTPUT_VARIABLE ucx_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  set(UCX_ROOT "${ucx_dir}" CACHE PATH "" FORCE)
endif()
if(UCX_ROOT AND NOT EXISTS "${UCX_ROOT}/include/ucp/api/ucp.h")
  message(FATAL_ERROR "no UCX in '${UCX_ROOT}' (UCX_ROOT): a folder with include/ucp/api/ucp.h and "
                      "lib/libucp.so is needed; scripts/setup --ucx installs one")
endif()
# A build tree that is configured for another UCX must not keep what was found of the one before.
if(DEFINED SPECFABRIC_UCX_OF AND NOT SPECFABRIC_UCX_OF STREQUAL "${UCX_ROOT}")
  unset(SPECFABRIC_UCX_INCLUDE CACHE)
  unset(SPECFABRIC_UCP CACHE)
  unset(SPECFABRIC_UCS CACHE)
endif()
set(SPECFABRIC_UCX_OF "${UCX_ROOT}" CACHE INTERNAL "Where SPECFABRIC_UCX_* were looked for")
find_path(SPECFABRIC_UCX_INCLUDE ucp/api/ucp.h HINTS "${UCX_ROOT}/include" REQUIRED)
find_library(SPECFABRIC_UCP ucp HINTS "${UCX_ROOT}/lib" REQUIRED)
find_library(SPECFABRIC_UCS ucs HINTS "${UCX_ROOT}/lib" REQUIRED)
add_library(specfabric_ucx INTERFACE)
target_include_directories(specfabric_ucx SYSTEM INTERFACE "${SPECFABRIC_UCX_INCLUDE}")
target_link_libraries(specfabric_ucx INTERFACE "${SPECFABRIC_UCP}" "${SPECFABRIC_UCS}")

# xxHash: its header alone, used inline.
find_path(SPECFABRIC_XXHASH_INCLUDE xxhash.h REQUIRED)
add_library(specfabric_xxhash INTERFACE)
target_include_directories(specfabric_xxhash SYSTEM INTERFACE "${SPECFABRIC_XXHASH_INCLUDE}")

# libtorch is the Python wheel's: only libtorch_cpu and libc10 are linked.
if(SPECFABRIC_TORCH)
  set(SPECFABRIC_TORCH_DIR "" CACHE PATH "The torch folder of a Python environment")
  if(NOT SPECFABRIC_TORCH_DIR)
    execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/setup" --print-torch-dir
                    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                    RESULT_VARIABLE torch_result)
    if(NOT torch_result EQUAL 0 OR NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so")
      message(FATAL_ERROR "libtorch not found (looked in '${torch_dir}'): run scripts/setup, or "
                          "give -DSPECFABRIC_TORCH_DIR=<torch folder>")
    endif()
    set(SPECFABRIC_TORCH_DIR "${torch_dir}" CACHE PATH "" FORCE)
  endif()
  add_library(specfabric_torch INTERFACE)
  target_include_directories(specfabric_torch SYSTEM INTERFACE
                             "${SPECFABRIC_TORCH_DIR}/include")
  target_link_libraries(specfabric_torch INTERFACE "${SPECFABRIC_TORCH_DIR}/lib/libtorch_cpu.so"
                        "${SPECFABRIC_TORCH_DIR}/lib/libc10.so")
  # The wheel's CUDA run-time libraries lie beside it; libtorch_cpu.so names two of them.
  target_link_options(specfabric_torch INTERFACE
                      "-Wl,-rpath,${SPECFABRIC_TORCH_DIR}/lib"
                      "-Wl,--allow-shlib-undefined")
endif()

# What bench/transport compares with; it builds what it finds.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(SPECFABRIC_ZMQ QUIET IMPORTED_TARGET libzmq)
  pkg_check_modules(SPECFABRIC_GRPC QUIET IMPORTED_TARGET grpc++ protobuf)
endif()
find_program(SPECFABRIC_PROTOC protoc)
find_program(SPECFABRIC_GRPC_PLUGIN grpc_cpp_plugin)
