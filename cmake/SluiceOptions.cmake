# Every build option of the project, in one place.
include(CMakeDependentOption)

option(SLUICE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(SLUICE_BUILD_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(SLUICE_BUILD_BENCH "Build the microbenchmarks" OFF)
option(SLUICE_INSTALL "Create install rules" ${PROJECT_IS_TOP_LEVEL})
option(SLUICE_WERROR "Treat warnings as errors; for who changes the code, not for who builds it with another compiler" OFF)
option(SLUICE_URING "Build the io_uring storage backend (needs liburing)" ON)
option(SLUICE_SIMD "Build the per-ISA kernels; OFF leaves the scalar reference only" ON)
set(SLUICE_CUDA AUTO CACHE STRING "Build the GPU tier, libsluice_cuda.so: AUTO (where nvcc is), ON or OFF")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SLUICE_SANITIZE "" CACHE STRING "Sanitizers, comma separated: address,undefined or thread")
set(SLUICE_TEST_DATA "" CACHE PATH
    "Optional folder with extra test data (vocabularies, quantized rows, malformed files); tests that need it skip without it")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
