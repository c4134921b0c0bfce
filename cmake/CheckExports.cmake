# SPDX-License-Identifier: Apache-2.0
# cmake -DLIBRARY=x.so -DSYMBOL=name -DNM=nm -P CheckExports.cmake: fails unless x.so exports exactly that one symbol.
execute_process(COMMAND "${NM}" -D --defined-only "${LIBRARY}" OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[0-9a-f]+ [A-Za-z] [^\n]+" lines "${table}")
set(names "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^[0-9a-f]+ [A-Za-z] ([^@]+).*" "\\1" name "${line}")
  list(APPEND names "${name}")
endforeach()
if(NOT names STREQUAL SYMBOL)
  file(REMOVE "${LIBRARY}")
  message(FATAL_ERROR "${LIBRARY} must export ${SYMBOL} and nothing else; it exports: ${names}")
endif()
