# nvcc and the run-time library: a toolkit's, named by CMAKE_CUDA_COMPILER or CUDACXX, or the one that
# scripts/setup --cuda installs.

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/setup" --print-nvidia-dir
                  OUTPUT_VARIABLE nvidia_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  set(CMAKE_CUDA_COMPILER "${nvidia_dir}/cu13/bin/nvcc")
  if(NOT EXISTS "${CMAKE_CUDA_COMPILER}")
    message(FATAL_ERROR "no nvcc in '${CMAKE_CUDA_COMPILER}': run scripts/setup --cuda, or give "
                        "-DCMAKE_CUDA_COMPILER=<nvcc>")
  endif()
endif()

# A100, H100 and H200, B200: machine code for each, nothing for any other.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-real CACHE STRING "GPU architectures")
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
if(SPECFABRIC_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${SPECFABRIC_CCACHE}")
endif()
enable_language(CUDA)
# CMake 3.25 does not know that nvcc speaks C++20, and takes the standard from C++'s.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")

# Asked for by hand: CMake 3.25 does not find its way about CUDA 13.
get_filename_component(cuda_root "${CMAKE_CUDA_COMPILER}/../.." REALPATH)
execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/setup" --print-nvidia-dir
                OUTPUT_VARIABLE nvidia_dir OUTPUT_STRIP_TRAILING_WHITESPACE)
find_path(SPECFABRIC_CUDA_INCLUDE cuda_runtime_api.h HINTS "${cuda_root}/include" REQUIRED)
find_path(SPECFABRIC_NCCL_INCLUDE nccl.h HINTS "${nvidia_dir}/nccl/include" REQUIRED)
add_library(specfabric_cuda_headers INTERFACE)
target_include_directories(specfabric_cuda_headers SYSTEM INTERFACE "${SPECFABRIC_CUDA_INCLUDE}"
                           "${SPECFABRIC_NCCL_INCLUDE}")

# specfabric_cudart, specfabric_cublas, specfabric_nccl: with the headers.
foreach(name cudart cublas nccl)
  string(TOUPPER ${name} upper)
  find_library(SPECFABRIC_${upper}_LIBRARY ${name}
               HINTS "${cuda_root}/lib64" "${cuda_root}/lib" "${nvidia_dir}/nccl/lib" REQUIRED)
  add_library(specfabric_${name} INTERFACE)
  target_link_libraries(specfabric_${name} INTERFACE specfabric_cuda_headers
                        "${SPECFABRIC_${upper}_LIBRARY}")
endforeach()

# FlashInfer's headers and the CCCL they are written for, which is newer than nvcc's own.
execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/setup" --print-flashinfer-include-dirs
                OUTPUT_VARIABLE flashinfer_dirs OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
foreach(dir IN LISTS flashinfer_dirs)
  if(NOT IS_DIRECTORY "${dir}")
    message(FATAL_ERROR "no FlashInfer headers in '${dir}': run scripts/setup --cuda")
  endif()
endforeach()
add_library(specfabric_flashinfer INTERFACE)
target_include_directories(specfabric_flashinfer SYSTEM INTERFACE ${flashinfer_dirs})
