# SPDX-License-Identifier: Apache-2.0
# kvplug_read_version(<out> <file> <before>): MAJOR.MINOR.PATCH out of the lines of a file that hold <before>MAJOR,
# <before>MINOR and <before>PATCH, each with its number behind it.
function(kvplug_read_version out file before)
  set(version "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${file}" line REGEX "${before}${part} ")
    string(REGEX REPLACE ".* ([0-9]+).*" "\\1" number "${line}")
    list(APPEND version "${number}")
  endforeach()
  list(JOIN version "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()
