// SPDX-License-Identifier: Apache-2.0
// The commands, each an exit code away from main.
#pragma once

#include "cli/arguments.h"
#include "cli/handles.h"

namespace kvplug::cli {

// A host that logs to standard error as loudly as asked, with the folders of KVPLUG_PLUGIN_PATH.
Host make_host(const Arguments& arguments);
// The run file (or the prompts of `generate`), the environment and the flags as one config.
Config make_config(kvplug_host* host, const Arguments& arguments, const std::string& file);

int run_command(const Arguments& arguments);  // run, generate
int bench_command(const Arguments& arguments);
int diff_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int explain_command(const Arguments& arguments);
int check_command(const Arguments& arguments);
int doctor_command(const Arguments& arguments);
int plugin_command(const Arguments& arguments);  // list, info

// As JSON or as text(json), where -o says.
void print_answer(const Arguments& arguments, const nlohmann::json& json, std::string (*text)(const nlohmann::json&));

// One key's value; of a table every key with value and origin.
nlohmann::json config_value(const kvplug_config* config, const char* key);
void print_notices(const nlohmann::json& notices, bool quiet);

}  // namespace kvplug::cli
