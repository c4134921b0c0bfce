// SPDX-License-Identifier: Apache-2.0
// Runs the built program as a shell would: arguments, environment, a signal; and what came of it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

extern char** environ;

namespace kvplug::testing {

struct Outcome {
  int exit_code = -1;  // 128 + n when signal n ended it
  std::string out, err;
};

struct ProgramOptions {
  std::map<std::string, std::string> environment = {};  // added to ours, in which no KVPLUG_ variable stays
  // Asked after output came, with all of both streams so far: a signal to send once, or 0.
  std::function<int(const std::string& out, const std::string& err)> signal_when = {};
  std::chrono::seconds timeout{120};
};

inline Outcome run_command_line(std::vector<std::string> words, const ProgramOptions& options = {}) {
  std::vector<std::string> environment;
  for (char** at = environ; *at; ++at) {
    if (std::string(*at).rfind("KVPLUG_", 0) != 0) environment.emplace_back(*at);
  }
  for (const auto& [name, value] : options.environment) environment.push_back(name + "=" + value);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  };
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  pid_t child = 0;
  const int spawned =
      posix_spawn(&child, words[0].c_str(), &actions, nullptr, pointers(words).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  if (spawned != 0) throw std::runtime_error(words[0] + " cannot be started");

  Outcome outcome;
  pollfd ends[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* const texts[2] = {&outcome.out, &outcome.err};
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  bool signalled = false;
  for (int open = 2; open > 0;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      throw std::runtime_error(words[0] + " did not end in time; it wrote: " + outcome.out + outcome.err);
    }
    poll(ends, 2, static_cast<int>(left.count()));
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char bytes[65536];
      const ssize_t n = read(ends[i].fd, bytes, sizeof bytes);
      if (n > 0) {
        texts[i]->append(bytes, static_cast<size_t>(n));
      } else {
        close(ends[i].fd);
        ends[i].fd = -1;
        --open;
      }
    }
    if (options.signal_when && !signalled) {
      if (const int number = options.signal_when(outcome.out, outcome.err)) {
        kill(child, number);
        signalled = true;
      }
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

// The program of this build.
inline Outcome kvplug_program(std::vector<std::string> arguments, const ProgramOptions& options = {}) {
  arguments.insert(arguments.begin(), std::string(KVPLUG_TEST_BUILD) + "/bin/kvplug");
  return run_command_line(std::move(arguments), options);
}

}  // namespace kvplug::testing
