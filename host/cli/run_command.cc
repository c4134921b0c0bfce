// SPDX-License-Identifier: Apache-2.0
// run and generate: stream what is generated, then the document in the format asked for.
#include <algorithm>
#include <csignal>
#include <map>
#include <optional>
#include <vector>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/tables.h"
#include "cli/terminal.h"

namespace kvplug::cli {
namespace {

volatile std::sig_atomic_t interrupts = 0;

// The first Ctrl-C ends the generation, the second the program.
void on_interrupt(int) {
  interrupts = interrupts + 1;
  if (interrupts > 1) std::_Exit(130);
}

struct Live {
  Output* out = nullptr;
  ProgressLine* progress = nullptr;
  bool stream = false;             // text goes out as it comes
  bool streamed = false;           // some has
  bool notices = false;            // so do notices, to standard error
  std::vector<std::string> told;   // those that did
  std::optional<Failure> failure;  // nothing may be thrown through the library
};

int32_t on_progress(void* user, uint64_t done, uint64_t total) {
  static_cast<Live*>(user)->progress->show(done, total);
  return interrupts != 0;
}

int32_t on_event(void* user, const kvplug_event* event) {
  Live& live = *static_cast<Live*>(user);
  live.progress->clear();
  if (live.notices && event->type == KVPLUG_EVENT_NOTICE) {
    live.told.emplace_back(event->text, event->text_len);
    std::fprintf(stderr, "%s %s\n", in_color("33", "notice:").c_str(), live.told.back().c_str());
  }
  if (live.stream && event->type == KVPLUG_EVENT_TEXT && !live.failure) {
    try {
      live.out->write({event->text, event->text_len});
      live.streamed = true;
    } catch (const Failure& failure) {
      live.failure = failure;
    }
  }
  return interrupts != 0 || live.failure;
}

// The texts of several prompts would run into each other.
bool has_one_prompt(const kvplug_config* config) {
  if (!config_value(config, "input.jsonl").is_null()) return false;
  bool any = false;
  const nlohmann::json prompts = json_from(kvplug_config_get, config, "prompts");  // {"[0].text": ..., ...}
  for (const auto& [key, value] : prompts.items()) {
    if (!key.starts_with("[")) continue;
    if (!key.starts_with("[0]")) return false;
    any = true;
  }
  return any;
}

std::string text_of(const nlohmann::json& results, const nlohmann::json& include) {
  std::string out;
  for (const auto& result : results) {
    if (results.size() > 1) out += "== " + result["id"].get<std::string>() + " ==\n";
    if (result.contains("error")) {
      out += "error: " + result["error"]["message"].get<std::string>() + "\n";
      continue;
    }
    for (const auto& sequence : result["sequences"]) {
      const bool ids_only = sequence["text"] == "" && !sequence["token_ids"].empty();
      bool ids = ids_only;
      for (const auto& what : include) ids = ids || what == "token_ids";
      if (!ids_only) out += sequence["text"].get<std::string>() + "\n";
      if (ids) out += sequence["token_ids"].dump() + "\n";
    }
  }
  return out;
}

void print_summary(const nlohmann::json& document) {
  const auto& timings = document["timings"];
  std::fprintf(stderr, "load %.2f s, prefill %.1f tokens/s, decode %.1f tokens/s, seed %s\n",
               timings["load_s"].get<double>(), timings["prefill_tokens_per_s"].get<double>(),
               timings["decode_tokens_per_s"].get<double>(), document["seed"].dump().c_str());
}

}  // namespace

int run_command(const Arguments& arguments) {
  const Host host = make_host(arguments);
  const std::string file = arguments.command == Command::kRun ? arguments.files.at(0) : std::string();
  const Config config = make_config(host.get(), arguments, file);
  if (arguments.print_effective_config) {
    Output("-", false).write(text_from(kvplug_config_effective, config.get()));
    return 0;
  }
  const nlohmann::json task = config_value(config.get(), "run.task");
  const bool plan_only = task == "plan";
  if (arguments.dry_run || plan_only) {
    const nlohmann::json plan =
        json_from(kvplug_plan_run, host.get(), config.get(), static_cast<kvplug_plan*>(nullptr));
    print_answer(arguments, plan, plan_text);
    return plan["fits"].get<bool>() ? 0 : 5;
  }
  if (task == "bench") return bench_command(arguments);
  if (task == "diff") return diff_command(arguments);
  const nlohmann::json output = json_from(kvplug_config_get, config.get(), "output");
  const auto setting = [&](const char* key) { return output[key]["value"]; };
  const std::string format = setting("format");
  Output out(setting("path").get<std::string>(), setting("overwrite").get<bool>());
  ProgressLine progress("loading weights", arguments.quiet ? "never" : setting("progress").get<std::string>());

  Live live;
  live.out = &out;
  live.progress = &progress;
  live.stream = format == "text" && setting("stream").get<bool>() &&
                setting("include") == nlohmann::json::array({"text"}) && has_one_prompt(config.get());
  live.notices = format != "json" && !arguments.quiet;
  kvplug_run_params params{};
  params.struct_size = sizeof params;
  params.progress = on_progress;
  params.event = on_event;
  params.user = &live;
  std::signal(SIGINT, on_interrupt);
  const nlohmann::json document = json_from(kvplug_run, host.get(), config.get(), &params);
  progress.clear();
  if (live.failure) throw *live.failure;

  const nlohmann::json& results = document["results"];
  if (format == "json") {
    out.write(document.dump() + "\n");
  } else if (format == "jsonl") {
    for (const auto& result : results) out.write(result.dump() + "\n");
  } else {
    if (live.streamed) out.write("\n");
    if (!live.streamed || results[0].contains("error")) out.write(text_of(results, setting("include")));
  }
  out.finish();
  if (format != "json") {
    nlohmann::json rest = nlohmann::json::array();
    for (const auto& notice : document["notices"]) {
      const std::string text = notice["text"];
      const bool known =
          std::any_of(live.told.begin(), live.told.end(), [&](const auto& t) { return text.ends_with(t); });
      if (!known) rest.push_back(notice);
    }
    print_notices(rest, arguments.quiet);
  }
  if (arguments.verbose > 0 || (!arguments.quiet && stderr_is_terminal())) print_summary(document);
  return interrupts != 0 ? 130 : 0;
}

}  // namespace kvplug::cli
