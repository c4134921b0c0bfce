// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/tables.h"
#include "cli/terminal.h"

extern char** environ;

namespace kvplug::cli {
namespace {

void log_line(void*, int32_t level, const char* area, const char* text, size_t len) {
  static constexpr const char* kWords[] = {"error", "warning", "info", "debug"};
  std::fprintf(stderr, "%s: %s: %.*s\n", kWords[level < 0 || level > 3 ? 3 : level], area, static_cast<int>(len), text);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Failure(KVPLUG_E_NOT_FOUND, path + ": " + std::strerror(errno));
  if (std::error_code ec; std::filesystem::is_directory(path, ec)) {
    throw Failure(KVPLUG_E_NOT_FOUND, path + ": is a folder; expected a file");
  }
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The prompts of the command line as a document like a run file.
std::string prompts_document(const Arguments& arguments) {
  nlohmann::json prompts = nlohmann::json::array();
  const bool chat = arguments.chat || !arguments.system_prompt.empty();
  const auto add = [&](const std::string& text) {
    if (!chat) {
      prompts.push_back({{"text", text}});
      return;
    }
    nlohmann::json messages = nlohmann::json::array();
    if (!arguments.system_prompt.empty())
      messages.push_back({{"role", "system"}, {"content", arguments.system_prompt}});
    messages.push_back({{"role", "user"}, {"content", text}});
    prompts.push_back({{"messages", messages}});
  };
  for (const std::string& text : arguments.prompts) add(text);
  for (const std::string& path : arguments.prompt_files) add(read_file(path));
  nlohmann::json document = {{"config_version", 1}};
  if (!prompts.empty()) document["prompts"] = prompts;
  try {
    return document.dump();
  } catch (const nlohmann::json::exception&) {
    throw Failure(KVP_INVALID_ARGUMENT, "a prompt is not UTF-8 text");
  }
}

}  // namespace

void print_answer(const Arguments& arguments, const nlohmann::json& json, std::string (*text)(const nlohmann::json&)) {
  // A path in the run file is the result's; one of the command line is this answer's.
  std::string path = "-", overwrite = "false";
  for (const Setting& setting : arguments.settings) {
    if (setting.flag == "--output") path = setting.value;
    if (setting.key == "output.overwrite") overwrite = setting.value;
  }
  Output out(path, overwrite == "true");
  out.write(arguments.json ? json.dump() + "\n" : text(json));
  out.finish();
}

Host make_host(const Arguments& arguments) {
  kvplug_host_params params{};
  params.struct_size = sizeof params;
  params.log = log_line;
  params.log_level = arguments.quiet ? KVP_LOG_ERROR : KVP_LOG_WARNING + arguments.verbose;
  Host host = make<Host>(kvplug_host_create, &params);
  if (const char* paths = std::getenv("KVPLUG_PLUGIN_PATH")) {
    for (const char* at = paths; *at != '\0';) {
      const size_t n = std::strcspn(at, ":");
      if (n != 0) call(kvplug_host_add_plugin_path, host.get(), at, n);
      at += n + (at[n] == ':');
    }
  }
  return host;
}

Config make_config(kvplug_host* host, const Arguments& arguments, const std::string& file) {
  Config config = make<Config>(kvplug_config_create, host);
  kvplug_config* const raw = config.get();
  if (!file.empty()) {
    const std::string text = read_file(file);
    call(kvplug_config_merge_toml, raw, text.data(), text.size(), file.c_str());
  } else {
    const std::string text = prompts_document(arguments);
    call(kvplug_config_merge_json, raw, text.data(), text.size(), "command line");
  }
  for (char** variable = environ; *variable; ++variable) {
    const char* equal = std::strchr(*variable, '=');
    const std::string name(*variable, equal ? static_cast<size_t>(equal - *variable) : std::strlen(*variable));
    if (name.starts_with("KVPLUG_") && equal) call(kvplug_config_set_environment, raw, name.c_str(), equal + 1);
  }
  for (const auto& [key, value, flag] : arguments.settings) {
    try {
      call(kvplug_config_set, raw, key.c_str(), value.c_str());
    } catch (const Failure& failure) {  // the library knows of its own call only
      const std::string& text = failure.text();
      throw Failure(failure.status(), text.starts_with("--set") ? flag + text.substr(5) : text);
    }
  }
  if (arguments.json && arguments.command != Command::kCheck) call(kvplug_config_set, raw, "output.format", "json");
  set_color(config_value(raw, "output.color").get<std::string>());
  return config;
}

nlohmann::json config_value(const kvplug_config* config, const char* key) {
  const nlohmann::json answer = json_from(kvplug_config_get, config, key);
  return answer.is_object() && answer.contains("origin") ? answer["value"] : answer;  // a table answers key by key
}

void print_notices(const nlohmann::json& notices, bool quiet) {
  if (quiet) return;
  for (const auto& notice : notices)
    std::fprintf(stderr, "%s %s\n", in_color("33", "notice:").c_str(), notice["text"].get<std::string>().c_str());
}

int plan_command(const Arguments& arguments) {
  const Host host = make_host(arguments);
  const Config config = make_config(host.get(), arguments, arguments.files.at(0));
  const nlohmann::json plan = json_from(kvplug_plan_run, host.get(), config.get(), static_cast<kvplug_plan*>(nullptr));
  print_answer(arguments, plan, plan_text);
  return plan["fits"].get<bool>() ? 0 : 5;
}

int explain_command(const Arguments& arguments) {
  const Host host = make_host(arguments);
  const Config config = make_config(host.get(), arguments, arguments.files.at(0));
  print_answer(arguments, json_from(kvplug_explain, host.get(), config.get()), explain_text);
  return 0;
}

int check_command(const Arguments& arguments) {
  const Host host = make_host(arguments);
  kvplug_status worst = KVP_OK;
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& file : arguments.files) {
    try {
      const Config config = make_config(host.get(), arguments, file);
      const nlohmann::json answer = json_from(kvplug_config_check, config.get());
      results.push_back({{"file", file}, {"ok", true}, {"digest", answer["digest"]}, {"notices", answer["notices"]}});
      if (!arguments.json) {
        print_notices(answer["notices"], arguments.quiet);
        Output("-", false).write(file + ": good\n");
      }
    } catch (const Failure& failure) {
      if (failure.status() == KVP_IO) throw;  // standard output
      worst = failure.status();
      print_failure(failure, arguments.json);
      results.push_back({{"file", file},
                         {"ok", false},
                         {"error", {{"code", kvplug_status_word(failure.status())}, {"text", failure.text()}}}});
    }
  }
  if (arguments.json) Output("-", false).write(nlohmann::json{{"schema_version", 1}, {"files", results}}.dump() + "\n");
  return exit_code(worst);
}

int doctor_command(const Arguments& arguments) {
  const Host host = make_host(arguments);
  nlohmann::json answer;
  try {
    answer = json_from(kvplug_host_describe, host.get(), KVPLUG_DESCRIBE_MODEL);
  } catch (const Failure& failure) {  // everything else can still be told
    answer = json_from(kvplug_host_describe, host.get(), 0u);
    answer["libraries"] = {{"error", failure.text()}};
  }
  print_answer(arguments, answer, doctor_text);
  return answer["libraries"].contains("error") ? 1 : 0;
}

int plugin_command(const Arguments& arguments) {
  const Host host = make_host(arguments);
  const nlohmann::json answer = json_from(kvplug_host_describe, host.get(), 0u);
  if (arguments.command == Command::kPluginList) {
    print_answer(arguments, answer, plugin_list_text);
    return 0;
  }
  const std::string& name = arguments.files.at(0);
  std::string known;
  for (const auto& plugin : answer["plugins"]) {
    bool matches = plugin["id"] == name;
    for (const auto& provided : plugin["provides"]) {
      matches = matches || provided["name"] == name;
      known += (known.empty() ? "" : ", ") + provided["name"].get<std::string>();
    }
    if (matches) {
      print_answer(arguments, plugin, plugin_info_text);
      return 0;
    }
  }
  throw Failure(KVPLUG_E_NOT_FOUND, "no plugin \"" + name + "\"\n  known: " + (known.empty() ? "none" : known));
}

}  // namespace kvplug::cli
