# SPDX-License-Identifier: Apache-2.0
# KVPLUG_SANITIZE=address,undefined or thread, for everything in the tree. An undefined-behaviour report ends the program, so
# that a test fails on it. LibTorch is not instrumented: for threads give tests/tsan.supp to TSAN_OPTIONS.
if(KVPLUG_SANITIZE)
  add_compile_options(-fsanitize=${KVPLUG_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KVPLUG_SANITIZE})
  if(KVPLUG_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)  # instrumented code of std::regex looks uninitialised to GCC 12
  endif()
endif()
