# sluice_test(module/file_test LABELS ... [TIMEOUT s]): one executable and one CTest entry per test file.
# A test that lacks data or a capability exits with GoogleTest's skip and says why.
find_package(GTest REQUIRED)

function(sluice_test path)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    message(FATAL_ERROR "sluice_test(${path}) needs LABELS")
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  string(REPLACE "/" "." name "${path}")
  add_executable(${name} "${PROJECT_SOURCE_DIR}/tests/${path}.cpp")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE sluice sluice_test_support GTest::gmock GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(SLUICE_TEST_DATA)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "SLUICE_TEST_DATA=${SLUICE_TEST_DATA}")
  endif()
endfunction()

# sluice_fuzz_test(module/NAME_fuzz_test LABELS ...): a test file that feeds the libFuzzer target fuzz/NAME_fuzz.cpp with
# seeded random inputs.
function(sluice_fuzz_test path)
  sluice_test(${path} ${ARGN})
  string(REPLACE "/" "." name "${path}")
  string(REGEX REPLACE "^.*/(.*)_test$" "\\1" target "${path}")
  target_sources(${name} PRIVATE "${PROJECT_SOURCE_DIR}/fuzz/${target}.cpp")
endfunction()
