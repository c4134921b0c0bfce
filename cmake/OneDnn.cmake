# SPDX-License-Identifier: Apache-2.0
# dnnl::dnnl, oneDNN on libgomp (tools/setup). Only host/model/exec links it. The process has one OpenMP run time, LibTorch's
# or the system's, both libgomp.so.1. LibTorch's own copy of oneDNN has local symbols and does not clash.
set(KVPLUG_ONEDNN_ROOT "${PROJECT_SOURCE_DIR}/deps/onednn" CACHE PATH "Folder with include/ and lib/ of oneDNN")
if(NOT EXISTS "${KVPLUG_ONEDNN_ROOT}/lib/libdnnl.so.3")
  message(FATAL_ERROR "oneDNN is missing under ${KVPLUG_ONEDNN_ROOT}: run tools/setup, or configure with -DKVPLUG_WITH_MODEL=OFF")
endif()
include(ReadVersion)
kvplug_read_version(KVPLUG_ONEDNN_VERSION "${KVPLUG_ONEDNN_ROOT}/include/oneapi/dnnl/dnnl_version.h" "define DNNL_VERSION_")

add_library(dnnl::dnnl SHARED IMPORTED GLOBAL)
set_target_properties(dnnl::dnnl PROPERTIES IMPORTED_LOCATION "${KVPLUG_ONEDNN_ROOT}/lib/libdnnl.so.3"
  INTERFACE_INCLUDE_DIRECTORIES "${KVPLUG_ONEDNN_ROOT}/include")
