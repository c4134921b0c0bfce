# SPDX-License-Identifier: Apache-2.0
# kvplug_export_only(<target> <symbol or pattern>...): the shared library <target> exports these names and nothing else.
# Everything it uses must be linked (-z defs); with sanitizers that rule is lifted, their run time lives in the program.
function(kvplug_export_only target)
  list(JOIN ARGN "; " names)
  set(map "${CMAKE_CURRENT_BINARY_DIR}/${target}.map")
  file(CONFIGURE OUTPUT "${map}" CONTENT "{ global: @names@; local: *; };\n" @ONLY)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${map}")
  if(NOT KVPLUG_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
endfunction()
