// SPDX-License-Identifier: Apache-2.0
// What goes where: results to standard output (or output.path), everything else to standard error.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "cli/handles.h"

namespace kvplug::cli {

// exit code of a status: 2 config, 3 model, 4 plugin, 5 memory, 6 capability, 130 cancelled, 1 the rest.
int exit_code(kvplug_status status);

// "error: where: message" with hints, or one JSON line.
void print_failure(const Failure& failure, bool json);

bool stderr_is_terminal();
// output.color: auto (colours when standard error is a terminal and NO_COLOR is not set) | always | never
void set_color(const std::string& mode);
std::string in_color(const char* sgr, std::string_view text);  // "31" red, "33" yellow

// The place of results. Throws Failure when it cannot be opened or written; a file appears only when it is complete.
class Output {
 public:
  Output(const std::string& path, bool overwrite);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void write(std::string_view text);  // flushed
  void finish();

 private:
  std::string path_, partial_;
  std::FILE* file_ = nullptr;
};

}  // namespace kvplug::cli
