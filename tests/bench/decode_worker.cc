// SPDX-License-Identifier: Apache-2.0
// Our side of tests/bench/decode: a process that loads a model once and then answers one line of JSON per line.
//   {"context": 512, "new": 64, "cache": {"cache_implementation": "dynamic", "cache_config": {}}}
//   ->  {"prefill_s": …, "step_s": […], "ids": […], "rss_bytes": …}
// The fed tokens are fixed (forced), so both sides do the same work; ids are what this side would have chosen.
// Through the C API alone. Usage: decode_worker MODEL_FOLDER DTYPE THREADS
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <kvplug/kvplug.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace kvplug::client;
using Clock = std::chrono::steady_clock;

namespace {

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The same ids as in decode_reference.py.
std::vector<int32_t> context_ids(int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(i * 7919 % 40000 + 100));
  return ids;
}
int32_t fed_id(int64_t step) { return static_cast<int32_t>(1000 + 7 * step); }

uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * 4096;
}

// Runs one step: the id chosen, and `id` fed instead of it.
int32_t step(kvplug_generation* generation, int32_t id) {
  kvplug_event event{};
  do {
    event.struct_size = sizeof event;
    call(kvplug_generation_next, generation, 0u, &event);
  } while (event.type != KVPLUG_EVENT_TOKEN);
  call(kvplug_generation_force, generation, 0u, id);
  return event.token_id;
}

// JSON as the text of a TOML value: they differ in tables alone.
std::string toml_text(const nlohmann::json& value) {
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, inner] : value.items()) text += (text.empty() ? "" : ", ") + key + " = " + toml_text(inner);
  return "{" + text + "}";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw Failure(KVP_INVALID_ARGUMENT, "usage: decode_worker MODEL_FOLDER DTYPE THREADS");
    const Host host = make<Host>(kvplug_host_create, nullptr);
    const auto configured = [&](std::map<std::string, std::string> settings) {
      Config config = make<Config>(kvplug_config_create, host.get());
      settings.insert({{"model.path", nlohmann::json(argv[1]).dump()},
                       {"model.dtype", nlohmann::json(argv[2]).dump()},
                       {"run.threads", argv[3]},
                       {"run.seed", "0"},
                       {"generation.eos_token_id", "[]"}});
      for (const auto& [key, value] : settings) call(kvplug_config_set, config.get(), key.c_str(), value.c_str());
      return config;
    };
    const Model model = make<Model>(kvplug_model_load, host.get(), configured({}).get(), nullptr, nullptr);
    std::cout << R"({"ready": true})" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      const auto request = nlohmann::json::parse(line);
      const int64_t context = request["context"], fresh = request["new"];
      std::map<std::string, std::string> settings = {{"generation.max_new_tokens", std::to_string(fresh + 1)}};
      for (const auto& [key, value] : request["cache"].items()) settings["generation." + key] = toml_text(value);
      const Config config = configured(settings);
      const Session session = make<Session>(kvplug_session_create, model.get(), config.get());
      const auto ids = context_ids(context);
      call(kvplug_session_append_ids, session.get(), 0u, ids.data(), ids.size());
      const Generation generation = make<Generation>(kvplug_generation_start, session.get(), nullptr);
      nlohmann::json chosen = nlohmann::json::array(), seconds = nlohmann::json::array();
      auto start = Clock::now();
      chosen.push_back(step(generation.get(), fed_id(0)));
      const double prefill = since(start);
      for (int64_t i = 1; i <= fresh; ++i) {
        start = Clock::now();
        chosen.push_back(step(generation.get(), fed_id(i)));
        seconds.push_back(since(start));
      }
      std::cout << nlohmann::json{{"prefill_s", prefill},
                                  {"step_s", seconds},
                                  {"ids", chosen},
                                  {"rss_bytes", resident_bytes()}}
                << std::endl;
    }
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "decode_worker: " << e.what() << "\n";
    return 1;
  }
}
