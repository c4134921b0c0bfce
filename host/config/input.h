// SPDX-License-Identifier: Apache-2.0
// Prompts that do not stand in the run file itself: text files and JSON Lines. Errors name file and line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/run.h"

namespace kvplug::config {

// The whole file as UTF-8 text; Error(kNotFound) or Error(kIo) with `where` in front, kConfig when it is not UTF-8.
std::string read_text_file(const std::string& path, const std::string& where);

// All prompts of a run in order: [[prompts]], then the lines of input.jsonl, cut at input.limit. A line is an object
// with text_column (string) or messages_column (array); `id` is used where it stands (default: the prompt's number),
// other columns are data of the user. `jsonl_where` names the setting in the message when the file itself cannot be
// read (Config::where("input.jsonl")).
std::vector<Prompt> read_prompts(const Run& run, const std::string& jsonl_where = "input.jsonl");

bool is_utf8(std::string_view text);

}  // namespace kvplug::config
