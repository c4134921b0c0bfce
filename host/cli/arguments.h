// SPDX-License-Identifier: Apache-2.0
// The command line as data. Flags are Hugging Face's names, with - or _, plus a closed list of aliases; each is one key
// of the run file. Flags whose meaning differs from what other tools mean by them are refused with the nearest key.
#pragma once

#include <string>
#include <vector>

namespace kvplug::cli {

enum class Command {
  kNone,
  kRun,
  kGenerate,
  kBench,
  kDiff,
  kPlan,
  kExplain,
  kCheck,
  kDoctor,
  kPluginList,
  kPluginInfo
};

struct Setting {
  std::string key, value;  // value: TOML or bare text
  std::string flag;        // that gave it, for messages
};

struct Arguments {
  Command command = Command::kNone;
  std::vector<std::string> files;  // run files; plugin names for `plugin info`
  std::vector<Setting> settings;   // in the order given
  std::vector<std::string> prompts, prompt_files;
  std::string system_prompt;
  bool chat = false;  // -p is a user's turn, rendered by the chat template
  bool json = false, quiet = false, dry_run = false, print_effective_config = false;
  int verbose = 0;
};

// Exits through CLI11 for --help and --version; throws Failure (KVPLUG_E_CONFIG) for what cannot be understood.
// Returns false when the answer has been printed already (help, version).
bool parse_arguments(int argc, char** argv, Arguments& out);

}  // namespace kvplug::cli
