# SPDX-License-Identifier: Apache-2.0
# Warnings for all of our own C and C++. They are options of this tree's folders and so reach neither the imported
# libraries (whose headers are system headers) nor anyone who uses an exported target.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow>"
  "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>"
  "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Woverloaded-virtual>")
if(KVPLUG_WARNINGS_AS_ERRORS)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Werror>")
endif()
