# SPDX-License-Identifier: Apache-2.0
# torch::cpu, LibTorch from the unpacked wheel (tools/setup). In the product only host/model/exec links it; a benchmark does as well, as a peer.
# find_package(Torch) is of no use: the wheel's configuration stops where no CUDA toolkit is installed. libtorch.so is
# not linked, because it names libtorch_cuda.so. libcudart and libcupti, which libtorch_cpu.so names, are found through
# its own RUNPATH as long as torch/lib and nvidia/cu13/lib stay side by side.
set(KVPLUG_TORCH_ROOT "${PROJECT_SOURCE_DIR}/deps/torch" CACHE PATH "Folder with include/ and lib/ of LibTorch")
if(NOT EXISTS "${KVPLUG_TORCH_ROOT}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch is missing under ${KVPLUG_TORCH_ROOT}: run tools/setup, or configure with -DKVPLUG_WITH_MODEL=OFF")
endif()
file(STRINGS "${KVPLUG_TORCH_ROOT}/include/torch/headeronly/version.h" line REGEX "^ *\"[0-9.]+\"$")
string(REGEX MATCH "[0-9.]+" KVPLUG_TORCH_VERSION "${line}")

foreach(library c10 torch_cpu)
  add_library(torch::${library} SHARED IMPORTED GLOBAL)
  set_target_properties(torch::${library} PROPERTIES IMPORTED_LOCATION "${KVPLUG_TORCH_ROOT}/lib/lib${library}.so"
    INTERFACE_INCLUDE_DIRECTORIES "${KVPLUG_TORCH_ROOT}/include")
endforeach()
set_target_properties(torch::torch_cpu PROPERTIES INTERFACE_LINK_LIBRARIES torch::c10 INTERFACE_COMPILE_FEATURES cxx_std_20
  INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${KVPLUG_TORCH_ROOT}/../nvidia/cu13/lib")
add_library(torch::cpu INTERFACE IMPORTED GLOBAL)
target_link_libraries(torch::cpu INTERFACE torch::torch_cpu)
