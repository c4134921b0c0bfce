// SPDX-License-Identifier: Apache-2.0
// The program kvplug: arguments in, exit code out.
#include <csignal>
#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "cli/terminal.h"

int main(int argc, char** argv) {
  using namespace kvplug::cli;
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of the write, which is reported
  Arguments arguments;
  try {
    if (!parse_arguments(argc, argv, arguments)) return 0;
    switch (arguments.command) {
      case Command::kRun:
      case Command::kGenerate: return run_command(arguments);
      case Command::kBench: return bench_command(arguments);
      case Command::kDiff: return diff_command(arguments);
      case Command::kPlan: return plan_command(arguments);
      case Command::kExplain: return explain_command(arguments);
      case Command::kCheck: return check_command(arguments);
      case Command::kDoctor: return doctor_command(arguments);
      case Command::kPluginList:
      case Command::kPluginInfo: return plugin_command(arguments);
      case Command::kNone: break;
    }
    return 2;
  } catch (const Failure& failure) {
    print_failure(failure, arguments.json);
    return exit_code(failure.status());
  } catch (const std::exception& e) {
    print_failure({KVP_INTERNAL, e.what()}, arguments.json);
    return 1;
  }
}
