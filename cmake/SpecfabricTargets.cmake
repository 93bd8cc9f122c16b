# How every library, test and benchmark of the project is declared, so that warnings, sanitizers,
# include paths and the linker are the same everywhere.

find_program(SPECFABRIC_CCACHE ccache)
if(SPECFABRIC_CCACHE)
  # ccache uses no precompiled header unless it may assume that __TIME__ and the macros defined
  # before one do not matter.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros "${SPECFABRIC_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

add_library(specfabric_options INTERFACE)
target_include_directories(specfabric_options INTERFACE "${PROJECT_SOURCE_DIR}")
# -ffp-contract=off: a compiler that fuses a*b+c on one machine and not on another would change the
# bits of a logit; kernels say std::fma where they mean it.
target_compile_options(specfabric_options INTERFACE
                       $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Werror;-ffp-contract=off>)
# nlohmann-json 3.11 does not compile with Clang's three-way comparison.
target_compile_definitions(specfabric_options INTERFACE
                           $<$<COMPILE_LANG_AND_ID:CXX,Clang>:JSON_HAS_THREE_WAY_COMPARISON=0>)
if(CMAKE_UNITY_BUILD)
  # Coroutine frames have members of unnamed types: harmless, but GCC says so outside main files.
  target_compile_options(specfabric_options INTERFACE
                         $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
find_program(SPECFABRIC_MOLD mold)
if(SPECFABRIC_MOLD AND NOT CMAKE_CROSSCOMPILING)  # a GCC for another machine does not find it
  target_link_options(specfabric_options INTERFACE -fuse-ld=mold)
endif()
if(SPECFABRIC_SANITIZE)
  # GCC 12 sees uninitialised members in libstdc++'s <regex> once the code is instrumented.
  target_compile_options(specfabric_options INTERFACE
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  # Not object-size, which AddressSanitizer watches as well, nor vptr, which needs type information of
  # libraries that are not instrumented and a file descriptor of its own: together a fifth of the time.
  target_compile_options(specfabric_options INTERFACE
                         -fsanitize=${SPECFABRIC_SANITIZE} -fno-sanitize=object-size,vptr
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(specfabric_options INTERFACE -fsanitize=${SPECFABRIC_SANITIZE})
endif()
if(SPECFABRIC_SANITIZE MATCHES "thread")
  # ThreadSanitizer does not know fences. Asio's are beside its locks, which order its handlers.
  target_compile_definitions(specfabric_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

# The same of nvcc and of the compiler behind it. Functions that are constexpr may be called on the
# device, which is most of what kernels share with the CPU's code. A library whose kernels need no
# CPU's bits sets its property SPECFABRIC_FUSE_MULTIPLY_ADD.
target_compile_options(specfabric_options INTERFACE
                       $<$<COMPILE_LANGUAGE:CUDA>:-fmad=$<IF:$<BOOL:$<TARGET_PROPERTY:SPECFABRIC_FUSE_MULTIPLY_ADD>>,true,false>;-Werror=all-warnings;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off>)

# specfabric_library(NAME sf_base SOURCES a.cc DEPS sf_other PRIVATE_DEPS lib)
# Without sources it is an interface library.
function(specfabric_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${ARG_NAME} STATIC ${ARG_SOURCES})
    # Coroutines and formatting, not arithmetic: with a sanitizer's checks Clang compiles them three
    # times as fast where it need not optimise them.
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}"
               OUTPUT_VARIABLE folder)
    if(SPECFABRIC_SANITIZE AND folder MATCHES "^(app|gateway|link|metrics|schemas|trace)$")
      target_compile_options(${ARG_NAME} PRIVATE -O0)
    endif()
    target_link_libraries(${ARG_NAME} PUBLIC specfabric_options ${ARG_DEPS}
                          PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(${ARG_NAME} INTERFACE)
    target_link_libraries(${ARG_NAME} INTERFACE specfabric_options ${ARG_DEPS})
  endif()
endfunction()

# Under AddressSanitizer: what UCX itself keeps. Under ThreadSanitizer: the false positives of
# libraries that are not instrumented, and no patching of mmap by UCX, which ThreadSanitizer's own
# does not survive. Under both: no enumerations of every outcome and no statistics over some
# hundred thousand draws, which take minutes and run nothing that the tests beside them do not; and not
# the limits of templates, which are the work of code in Rust, not instrumented.
set(SPECFABRIC_TEST_ENVIRONMENT "")
if(SPECFABRIC_SANITIZE)
  list(APPEND SPECFABRIC_TEST_ENVIRONMENT
       "GTEST_FILTER=-DistributionTest.*:ExactDistributionTest.*:LimitTest.*:CoupledDistributionTest.*:SampledDistributionTest.*:TreeVerifierDistributionTest.*:OracleTest.*")
endif()
if(CMAKE_CROSSCOMPILING_EMULATOR)  # minutes of arithmetic that other tests do part of
  list(APPEND SPECFABRIC_TEST_ENVIRONMENT "GTEST_FILTER=-*OverTheWholeRange")
endif()
# Suppressions name functions, which Clang's sanitizers learn from a program of its version.
find_program(SPECFABRIC_SYMBOLIZER NAMES llvm-symbolizer-16 llvm-symbolizer)
set(symbolizer "")
if(SPECFABRIC_SYMBOLIZER)
  set(symbolizer ":external_symbolizer_path=${SPECFABRIC_SYMBOLIZER}")
endif()
if(SPECFABRIC_SANITIZE MATCHES "address")
  list(APPEND SPECFABRIC_TEST_ENVIRONMENT
      "ASAN_OPTIONS=detect_leaks=1${symbolizer}"
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/suppressions/lsan.txt:print_suppressions=0")
endif()
if(SPECFABRIC_SANITIZE MATCHES "thread")
  list(APPEND SPECFABRIC_TEST_ENVIRONMENT
      "UCX_MEM_MMAP_HOOK_MODE=none"
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/suppressions/tsan.txt${symbolizer}")
endif()

# specfabric_add_test(NAME link_tcp_test COMMAND link_test [ENVIRONMENT UCX_TLS=tcp] [TIMEOUT seconds])
# Its label is the folder that it is declared in: ctest -L transport.
function(specfabric_add_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "COMMAND;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  get_filename_component(folder "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  set(environment ${SPECFABRIC_TEST_ENVIRONMENT} ${ARG_ENVIRONMENT})
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${ARG_NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${folder}
                       ENVIRONMENT "${environment}")
endfunction()

# How tests are compiled. What is tested is optimised as it is shipped; the tests themselves had
# better compile quickly, and with a sanitizer of undefined behaviour they take four times as long.
function(specfabric_test_options name)
  target_compile_options(${name} PRIVATE
                         $<$<NOT:$<CONFIG:Debug>>:${SPECFABRIC_TEST_OPTIMIZATION}>)
  if(SPECFABRIC_SANITIZE)
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  target_link_libraries(${name} PRIVATE specfabric_options GTest::gmock GTest::gtest_main)
  if(SPECFABRIC_PRECOMPILE)
    # So that ccache finds out what a precompiled header was made of, and that Clang accepts one of
    # the cache for a header of the same content but another time.
    target_compile_options(${name} PRIVATE
                           $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
                           "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
endfunction()

# One precompiled header for all tests: to read GoogleTest takes longer than most tests do. It
# comes of an executable, because the compiler must be told the same about both. The CUDA build has
# tests with other options.
option(SPECFABRIC_PRECOMPILE "Precompile the headers that most tests include" ON)
if(SPECFABRIC_CUDA OR CMAKE_CROSSCOMPILING)
  set(SPECFABRIC_PRECOMPILE OFF)
endif()
if(SPECFABRIC_PRECOMPILE)
  add_executable(specfabric_test_headers EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/empty.cc")
  specfabric_test_options(specfabric_test_headers)
  target_precompile_headers(specfabric_test_headers PRIVATE
    <gmock/gmock.h> <gtest/gtest.h> <algorithm> <atomic> <chrono> <cstdint> <functional> <map>
    <memory> <mutex> <optional> <random> <string> <thread> <vector>
    <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>)
endif()

# specfabric_test(NAME tree_test SOURCES tree_test.cc DEPS sf_speculation [TIMEOUT seconds])
function(specfabric_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  specfabric_test_options(${ARG_NAME})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  if(SPECFABRIC_PRECOMPILE)
    target_precompile_headers(${ARG_NAME} REUSE_FROM specfabric_test_headers)
  endif()
  specfabric_add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# specfabric_benchmark(NAME plan_bench SOURCES plan_bench.cc DEPS sf_scheduler)
function(specfabric_benchmark)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE specfabric_options ${ARG_DEPS}
                        benchmark::benchmark_main)
endfunction()

# Adds every folder below this one that has a CMakeLists.txt of its own.
function(specfabric_add_folders)
  file(GLOB files RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS "*/CMakeLists.txt")
  foreach(file IN LISTS files)
    get_filename_component(folder "${file}" DIRECTORY)
    add_subdirectory("${folder}")
  endforeach()
endfunction()
