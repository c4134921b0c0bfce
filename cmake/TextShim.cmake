# SPDX-License-Identifier: Apache-2.0
# kvplug::text_shim: tokenizers and chat templates, the Rust crate host/text/shim as a static library with a C header.
# Cargo decides what is out of date. All build trees share one cargo folder: a fresh one costs minutes. One Rust static
# library a process image; Rust plugins are shared libraries with a standard library of their own and get along with it.
find_program(KVPLUG_CARGO cargo REQUIRED HINTS "$ENV{HOME}/.cargo/bin")
find_package(Threads REQUIRED)
set(KVPLUG_CARGO_DIR "${PROJECT_SOURCE_DIR}/deps/cargo" CACHE PATH "Cargo target folder of the text shim")
set(shim_dir "${PROJECT_SOURCE_DIR}/host/text/shim")
set(shim_library "${KVPLUG_CARGO_DIR}/release/libkvplug_text.a")
file(GLOB_RECURSE shim_sources CONFIGURE_DEPENDS "${shim_dir}/src/*.rs")
# touch: cargo leaves a library it finds fresh as old as it is, and the build would ask again each time.
add_custom_command(OUTPUT "${shim_library}" DEPENDS ${shim_sources} "${shim_dir}/Cargo.toml" "${shim_dir}/Cargo.lock"
  COMMAND "${CMAKE_COMMAND}" -E env "CARGO_TARGET_DIR=${KVPLUG_CARGO_DIR}" "${KVPLUG_CARGO}" build --release --locked --quiet --lib
  COMMAND "${CMAKE_COMMAND}" -E touch "${shim_library}"
  WORKING_DIRECTORY "${shim_dir}" COMMENT "Building the text shim with cargo (minutes the first time)" VERBATIM)
add_custom_target(kvplug_text_shim DEPENDS "${shim_library}")

add_library(kvplug::text_shim INTERFACE IMPORTED GLOBAL)
target_include_directories(kvplug::text_shim INTERFACE "${shim_dir}")
target_link_libraries(kvplug::text_shim INTERFACE "${shim_library}" Threads::Threads ${CMAKE_DL_LIBS} m)
add_dependencies(kvplug::text_shim kvplug_text_shim)
