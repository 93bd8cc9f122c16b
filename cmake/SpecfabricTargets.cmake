# How every library, test and benchmark of the project is declared, so that warnings, sanitizers,
# include paths and the linker are the same everywhere.

find_program(SPECFABRIC_CCACHE ccache)
if(SPECFABRIC_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${SPECFABRIC_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SPECFABRIC_CCACHE}")
endif()

add_library(specfabric_options INTERFACE)
target_include_directories(specfabric_options INTERFACE "${PROJECT_SOURCE_DIR}")
# -ffp-contract=off: a compiler that fuses a*b+c on one machine and not on another would change the
# bits of a logit; kernels say std::fma where they mean it.
target_compile_options(specfabric_options INTERFACE
                       $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Werror;-ffp-contract=off>)
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
  target_compile_options(specfabric_options INTERFACE
                         -fsanitize=${SPECFABRIC_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(specfabric_options INTERFACE -fsanitize=${SPECFABRIC_SANITIZE})
endif()
if(SPECFABRIC_SANITIZE MATCHES "thread")
  # GCC's ThreadSanitizer does not know fences. Asio's are beside its locks, which order its handlers.
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
    target_link_libraries(${ARG_NAME} PUBLIC specfabric_options ${ARG_DEPS}
                          PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(${ARG_NAME} INTERFACE)
    target_link_libraries(${ARG_NAME} INTERFACE specfabric_options ${ARG_DEPS})
  endif()
endfunction()

# Under AddressSanitizer: what UCX itself keeps. Under ThreadSanitizer: the false positives of
# libraries that are not instrumented, and no patching of mmap by UCX, which ThreadSanitizer's own
# does not survive. Under both: no statistics over some hundred thousand draws, which take minutes
# and run nothing that the tests beside them do not.
set(SPECFABRIC_TEST_ENVIRONMENT "")
if(SPECFABRIC_SANITIZE)
  list(APPEND SPECFABRIC_TEST_ENVIRONMENT
       "GTEST_FILTER=-DistributionTest.*:CoupledDistributionTest.*:SampledDistributionTest.*:TreeVerifierDistributionTest.*:OracleTest.*")
endif()
if(CMAKE_CROSSCOMPILING_EMULATOR)  # minutes of arithmetic that other tests do part of
  list(APPEND SPECFABRIC_TEST_ENVIRONMENT "GTEST_FILTER=-*OverTheWholeRange")
endif()
if(SPECFABRIC_SANITIZE MATCHES "address")
  list(APPEND SPECFABRIC_TEST_ENVIRONMENT
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/suppressions/lsan.txt:print_suppressions=0")
endif()
if(SPECFABRIC_SANITIZE MATCHES "thread")
  list(APPEND SPECFABRIC_TEST_ENVIRONMENT
      "UCX_MEM_MMAP_HOOK_MODE=none"
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/suppressions/tsan.txt")
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

# specfabric_test(NAME tree_test SOURCES tree_test.cc DEPS sf_speculation [TIMEOUT seconds])
function(specfabric_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  # What is tested is optimised as it is shipped; the tests themselves had better compile quickly.
  target_compile_options(${ARG_NAME} PRIVATE
                         $<$<NOT:$<CONFIG:Debug>>:${SPECFABRIC_TEST_OPTIMIZATION}>)
  if(SPECFABRIC_SANITIZE)  # of undefined behaviour only in what is tested: a quarter of the time
    target_compile_options(${ARG_NAME} PRIVATE -fno-sanitize=undefined)
  endif()
  target_link_libraries(${ARG_NAME} PRIVATE specfabric_options ${ARG_DEPS} GTest::gmock
                        GTest::gtest_main)
  specfabric_add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# specfabric_benchmark(NAME plan_bench SOURCES plan_bench.cc DEPS sf_scheduler)
function(specfabric_benchmark)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE specfabric_options ${ARG_DEPS}
                        benchmark::benchmark_main)
endfunction()

# Adds every folder below this one that has a CMakeLists.txt of its own; those that need libtorch,
# named here, only when it is built with.
function(specfabric_add_folders)
  file(GLOB files RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS "*/CMakeLists.txt")
  set(needs_torch model draft)
  foreach(file IN LISTS files)
    get_filename_component(folder "${file}" DIRECTORY)
    if(SPECFABRIC_TORCH OR NOT folder IN_LIST needs_torch)
      add_subdirectory("${folder}")
    endif()
  endforeach()
endfunction()
