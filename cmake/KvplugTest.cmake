# SPDX-License-Identifier: Apache-2.0
# kvplug_add_test(<name> SOURCES a_test.cc ... [LINK target ...] [LABELS unit ...] [DEPENDS target ...] [ENVIRONMENT A=b ...]
#                 [TIMEOUT seconds] [NO_MAIN])
#
# One GoogleTest program, one ctest entry: starting a program that loads LibTorch costs up to half a second, too much per
# case. DEPENDS names targets that must be built first (plugins, programs). Default label: unit. The sources see
#   KVPLUG_TEST_DATA      tests/data in the source tree, read-only
#   KVPLUG_TEST_BUILD     the build folder, with bin/, lib/ and plugins/
function(kvplug_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN" "TIMEOUT" "SOURCES;LINK;LABELS;DEPENDS;ENVIRONMENT")
  if(NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvplug_add_test(${name}): SOURCES are needed; not understood: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  target_compile_definitions(${name} PRIVATE
    "KVPLUG_TEST_DATA=\"${PROJECT_SOURCE_DIR}/tests/data\"" "KVPLUG_TEST_BUILD=\"${PROJECT_BINARY_DIR}\"")
  if(arg_NO_MAIN)
    target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gtest)
  else()
    target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gtest_main)
  endif()
  if(arg_DEPENDS)
    add_dependencies(${name} ${arg_DEPENDS})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # One OpenMP thread: two on a busy machine wait for each other's time slices.
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
  set_property(TEST ${name} PROPERTY ENVIRONMENT OMP_NUM_THREADS=1 ${arg_ENVIRONMENT})
endfunction()
