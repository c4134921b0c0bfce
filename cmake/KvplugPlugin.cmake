# SPDX-License-Identifier: Apache-2.0
# How a cache or quantizer plugin is built: one library that exports kvp_plugin_entry_v<abi major> alone, its manifest, and
# the options schemas that the manifest names, side by side in <build>/plugins.
#
#   kvplug_add_plugin(<target> SOURCES a.cc ... MANIFEST plugin.toml [OPTIONS x.options.json ...] [LINK kvplug::sdk ...])
#   kvplug_import_plugin(<target> LANG RUST|GO DIRECTORY <crate or module> MANIFEST plugin.toml [OPTIONS ...])
#
# The manifest's `library` is the one place that says what the file is called. OPTIONS is needed for schemas that do not
# lie beside the manifest. kvplug_import_plugin leaves the compiling to cargo or go; the rest is the same.
set(KVPLUG_ABI_MAJOR 0)
if(EXISTS "${PROJECT_SOURCE_DIR}/abi/include/kvplug/version.h")
  file(STRINGS "${PROJECT_SOURCE_DIR}/abi/include/kvplug/version.h" line REGEX "define KVP_ABI_MAJOR ")
  string(REGEX REPLACE ".*KVP_ABI_MAJOR +([0-9]+).*" "\\1" KVPLUG_ABI_MAJOR "${line}")
endif()
set(KVPLUG_PLUGIN_ENTRY "kvp_plugin_entry_v${KVPLUG_ABI_MAJOR}")
set(KVPLUG_PLUGIN_DIR "${PROJECT_BINARY_DIR}/plugins")

# Reads one `key = "text"` line of a manifest, or stops with what is missing.
function(kvplug_manifest_text manifest key out)
  file(STRINGS "${manifest}" line REGEX "^${key} *= *\"" LIMIT_COUNT 1)
  if(NOT line MATCHES "^${key} *= *\"([^\"]+)\"")
    message(FATAL_ERROR "${manifest}: the manifest needs a line  ${key} = \"...\"")
  endif()
  set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

# Checks the manifest and puts it and its schemas into the plugin folder: as <library stem>.toml, and under their own names.
function(kvplug_plugin_files target manifest options)
  kvplug_manifest_text("${manifest}" id id)
  kvplug_manifest_text("${manifest}" library library)
  cmake_path(GET manifest PARENT_PATH folder)
  cmake_path(GET library STEM LAST_ONLY stem)
  file(READ "${manifest}" text)
  if(NOT text MATCHES "provides *=" AND NOT text MATCHES "\\[\\[ *provides *\\]\\]")
    message(FATAL_ERROR "${manifest}: the manifest provides nothing (key `provides`)")
  endif()
  string(REGEX MATCHALL "options *= *\"[^\"]+\"" named "${text}")
  foreach(item IN LISTS named)
    string(REGEX REPLACE ".*\"([^\"]+)\"" "\\1" name "${item}")
    list(FILTER options EXCLUDE REGEX "^${folder}/${name}$")
    set(given "${options}")
    list(FILTER given INCLUDE REGEX "/${name}$")
    if(NOT given)
      list(APPEND options "${folder}/${name}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES options)
  set(outputs "${KVPLUG_PLUGIN_DIR}/${stem}.toml")
  set(commands COMMAND "${CMAKE_COMMAND}" -E copy "${manifest}" "${KVPLUG_PLUGIN_DIR}/${stem}.toml")
  foreach(schema IN LISTS options)
    if(NOT EXISTS "${schema}")
      message(FATAL_ERROR "${manifest}: the options schema ${schema} does not exist")
    endif()
    cmake_path(GET schema FILENAME name)
    list(APPEND outputs "${KVPLUG_PLUGIN_DIR}/${name}")
    list(APPEND commands COMMAND "${CMAKE_COMMAND}" -E copy "${schema}" "${KVPLUG_PLUGIN_DIR}/${name}")
  endforeach()
  add_custom_command(OUTPUT ${outputs} ${commands} DEPENDS "${manifest}" ${options} VERBATIM
    COMMENT "Manifest of ${id}")
  add_custom_target(${target}_files DEPENDS ${outputs})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${manifest}")
  set(library "${library}" PARENT_SCOPE)
  set(stem "${stem}" PARENT_SCOPE)
endfunction()

# MANIFEST and OPTIONS as absolute paths.
macro(kvplug_plugin_paths)
  cmake_path(ABSOLUTE_PATH arg_MANIFEST NORMALIZE)
  list(TRANSFORM arg_OPTIONS REPLACE "^([^/].*)$" "${CMAKE_CURRENT_SOURCE_DIR}/\\1")
endmacro()

set(KVPLUG_CHECK_EXPORTS "${PROJECT_SOURCE_DIR}/cmake/CheckExports.cmake")
macro(kvplug_check_exports_command out library)
  set(${out} COMMAND "${CMAKE_COMMAND}" "-DLIBRARY=${library}" "-DSYMBOL=${KVPLUG_PLUGIN_ENTRY}" "-DNM=${CMAKE_NM}"
    -P "${KVPLUG_CHECK_EXPORTS}")
endmacro()

function(kvplug_add_plugin target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MANIFEST" "SOURCES;OPTIONS;LINK")
  if(NOT arg_SOURCES OR NOT arg_MANIFEST OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvplug_add_plugin(${target}): SOURCES and MANIFEST are needed; not understood: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  kvplug_plugin_paths()
  add_library(${target} MODULE ${arg_SOURCES})
  kvplug_plugin_files(${target} "${arg_MANIFEST}" "${arg_OPTIONS}")
  add_dependencies(${target} ${target}_files)
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "${stem}" SUFFIX ".so"
    LIBRARY_OUTPUT_DIRECTORY "${KVPLUG_PLUGIN_DIR}" BUILD_RPATH "" SKIP_BUILD_RPATH ON)
  target_link_libraries(${target} PRIVATE kvplug_abi ${arg_LINK})
  # A GNU-unique symbol would make two plugins share what each believes to own.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>")
  kvplug_export_only(${target} ${KVPLUG_PLUGIN_ENTRY})
  kvplug_check_exports_command(check "$<TARGET_FILE:${target}>")
  add_custom_command(TARGET ${target} POST_BUILD ${check} VERBATIM)
endfunction()

function(kvplug_import_plugin target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LANG;DIRECTORY;MANIFEST" "OPTIONS")
  if(NOT arg_LANG MATCHES "^(RUST|GO)$" OR NOT arg_DIRECTORY OR NOT arg_MANIFEST OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR
      "kvplug_import_plugin(${target}): LANG RUST|GO, DIRECTORY and MANIFEST are needed; not understood: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  kvplug_plugin_paths()
  cmake_path(ABSOLUTE_PATH arg_DIRECTORY NORMALIZE)
  kvplug_plugin_files(${target} "${arg_MANIFEST}" "${arg_OPTIONS}")
  set(out "${KVPLUG_PLUGIN_DIR}/${library}")
  set(abi "${PROJECT_SOURCE_DIR}/abi/include")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${arg_DIRECTORY}/*.rs" "${arg_DIRECTORY}/*.go" "${arg_DIRECTORY}/*.[ch]"
    "${arg_DIRECTORY}/Cargo.*" "${arg_DIRECTORY}/go.*" "${abi}/kvplug/*.h")
  if(arg_LANG STREQUAL "RUST")
    find_program(KVPLUG_CARGO cargo REQUIRED HINTS "$ENV{HOME}/.cargo/bin")
    file(STRINGS "${arg_DIRECTORY}/Cargo.toml" line REGEX "^name *= *\"" LIMIT_COUNT 1)
    string(REGEX REPLACE "^name *= *\"([^\"]+)\".*" "\\1" crate "${line}")
    string(REPLACE "-" "_" crate "${crate}")
    set(made "${CMAKE_CURRENT_BINARY_DIR}/${target}/release/lib${crate}.so")
    set(build COMMAND "${CMAKE_COMMAND}" -E env "CARGO_TARGET_DIR=${CMAKE_CURRENT_BINARY_DIR}/${target}" "KVPLUG_ABI_INCLUDE=${abi}"
      "${KVPLUG_CARGO}" build --release --locked --quiet)
  else()
    find_program(KVPLUG_GO go REQUIRED HINTS /usr/local/go/bin)
    set(map "${CMAKE_CURRENT_BINARY_DIR}/${target}.map")
    file(CONFIGURE OUTPUT "${map}" CONTENT "{ global: @KVPLUG_PLUGIN_ENTRY@; local: *; };\n" @ONLY)
    set(made "${CMAKE_CURRENT_BINARY_DIR}/${target}/${library}")
    # cgo names what it exports to C; the second version script takes all but the entry back.
    set(build COMMAND "${CMAKE_COMMAND}" -E env CGO_ENABLED=1 "CGO_CFLAGS=-O2 -I${abi}" "${KVPLUG_GO}" build -buildmode=c-shared -trimpath
      "-ldflags=-s -w -extldflags=-Wl,--version-script=${map}" -o "${made}" .)
  endif()
  kvplug_check_exports_command(check "${out}")
  add_custom_command(OUTPUT "${out}" ${build} COMMAND "${CMAKE_COMMAND}" -E copy "${made}" "${out}" ${check}
    DEPENDS ${sources} WORKING_DIRECTORY "${arg_DIRECTORY}" COMMENT "Building ${library} (${arg_LANG})" VERBATIM)
  add_custom_target(${target} ALL DEPENDS "${out}")
  add_dependencies(${target} ${target}_files)
endfunction()
