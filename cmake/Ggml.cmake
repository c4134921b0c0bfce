# SPDX-License-Identifier: Apache-2.0
# ggml::cpu, a peer of a benchmark and of nothing else, where its sources are (tools/setup --ggml). Compiled apart from
# this project's flags: with what llama.cpp turns on, and for this CPU as a whole. By itself GGML_NATIVE leaves out the
# part that expands q8_0 and q4_0, which then costs q4_0 a third more time.
set(KVPLUG_GGML_ROOT "${PROJECT_SOURCE_DIR}/deps/ggml" CACHE PATH "Folder with the sources of ggml")
set(KVPLUG_GGML OFF)
if(EXISTS "${KVPLUG_GGML_ROOT}/ggml.stamp")
  set(KVPLUG_GGML ON)
  include(ReadVersion)
  kvplug_read_version(KVPLUG_GGML_VERSION "${KVPLUG_GGML_ROOT}/CMakeLists.txt" "^set\\(GGML_VERSION_")

  include(ExternalProject)
  set(ggml_build "${PROJECT_BINARY_DIR}/ggml")
  set(ggml_libraries "${ggml_build}/lib/libggml-base.so" "${ggml_build}/lib/libggml-cpu.so")
  ExternalProject_Add(kvplug_ggml EXCLUDE_FROM_ALL ON
    PREFIX "${ggml_build}" SOURCE_DIR "${KVPLUG_GGML_ROOT}" BINARY_DIR "${ggml_build}"
    CMAKE_ARGS -DCMAKE_BUILD_TYPE=Release "-DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}"
      "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}" "-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${ggml_build}/lib"
      -DCMAKE_C_FLAGS=-march=native -DCMAKE_CXX_FLAGS=-march=native -DGGML_NATIVE=ON -DGGML_OPENMP=ON -DGGML_LLAMAFILE=ON
      -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF -DGGML_ALL_WARNINGS=OFF
    BUILD_COMMAND "${CMAKE_COMMAND}" --build . --target ggml-cpu
    INSTALL_COMMAND "" BUILD_BYPRODUCTS ${ggml_libraries})
  add_library(ggml::cpu INTERFACE IMPORTED GLOBAL)
  target_include_directories(ggml::cpu INTERFACE "${KVPLUG_GGML_ROOT}/include")
  target_link_libraries(ggml::cpu INTERFACE ${ggml_libraries})
  add_dependencies(ggml::cpu kvplug_ggml)
endif()
