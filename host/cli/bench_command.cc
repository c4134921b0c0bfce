// SPDX-License-Identifier: Apache-2.0
// bench: speed and memory of caches as tables.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/measure.h"
#include "cli/tables.h"

namespace kvplug::cli {
namespace {

// llama-bench's names: pp512, tg128, with the depth behind.
std::string test_text(const nlohmann::json& row) {
  const int64_t prompt = row["prompt_tokens"], depth = row["depth"], batch = row["batch"];
  std::string out = prompt > 0 ? fmt::format("pp{}", prompt) : fmt::format("tg{}", row["new_tokens"].get<int64_t>());
  if (depth > 0) out += fmt::format(" @ {}", depth);
  return out + (batch > 1 ? fmt::format(" x {}", batch) : "");
}

Table table(const nlohmann::json& document) {
  Table out{{"cache", "test", "tokens/s", "min", "max", "K/V used", "reserved", "rss", "a step reads", "roof", "MBU"},
            {}};
  for (const auto& row : document["runs"]) {
    if (row.contains("error")) {
      out.rows.push_back({cache_text(row), test_text(row), "failed", "-", "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const auto rate = [&](const char* key) { return fmt::format("{:.1f}", row["tokens_per_s"][key].get<double>()); };
    const bool decode = !row["mbu"].is_null();
    out.rows.push_back({cache_text(row), test_text(row), rate("median"), rate("min"), rate("max"),
                        bytes_text(row["kv_bytes"]), bytes_text(row["kv_reserved_bytes"]), bytes_text(row["rss_bytes"]),
                        decode ? bytes_text(row["step_bytes"]) : "-",
                        decode ? fmt::format("{:.1f}", row["roofline_tokens_per_s"].get<double>()) : "-",
                        decode ? fmt::format("{:.0f} %", 100 * row["mbu"].get<double>()) : "-"});
  }
  return out;
}

Table numbers(const nlohmann::json& document) {
  Table out{{"cache", "cache_config", "dtype", "threads", "batch", "depth", "prompt_tokens", "new_tokens",
             "tokens_per_s_median", "tokens_per_s_min", "tokens_per_s_max", "n", "kv_bytes", "kv_reserved_bytes",
             "rss_bytes", "step_bytes", "roofline_tokens_per_s", "mbu", "error"},
            {}};
  for (const auto& row : document["runs"]) {
    std::vector<std::string> cells{row["cache"].get<std::string>(), row["cache_config"].dump(),
                                   row["dtype"].get<std::string>()};
    const auto add = [&](const nlohmann::json& value) { cells.push_back(value.is_null() ? "" : value.dump()); };
    for (const char* key : {"threads", "batch", "depth", "prompt_tokens", "new_tokens"}) add(row[key]);
    const nlohmann::json rates = row.value("tokens_per_s", nlohmann::json::object());
    for (const char* key : {"median", "min", "max", "n"}) add(rates.value(key, nlohmann::json()));
    for (const char* key : {"kv_bytes", "kv_reserved_bytes", "rss_bytes", "step_bytes", "roofline_tokens_per_s", "mbu"})
      add(row.value(key, nlohmann::json()));
    cells.push_back(row.contains("error") ? row["error"]["message"].get<std::string>() : "");
    out.rows.push_back(std::move(cells));
  }
  return out;
}

std::string before(const nlohmann::json& document) {
  const auto &model = document["model"], &machine = document["machine"];
  const std::string path = model["path"];
  return fmt::format("{}  {}  {} layers  weights {}\n{}  {} threads read {:.1f} GB/s\n\n",
                     path.substr(path.find_last_of('/') + 1), model["dtype"].get<std::string>(), model["layers"].dump(),
                     bytes_text(document["weight_bytes"]), machine.value("cpu", "unknown processor"),
                     machine["read_threads"].dump(), machine["read_bytes_per_s"].get<double>() * 1e-9);
}

std::string after(const nlohmann::json& document) {
  std::string out, last;
  for (const auto& row : document["runs"]) {
    if (!row.contains("error")) continue;
    const std::string line =
        fmt::format("{} failed: {}\n", cache_text(row), row["error"]["message"].get<std::string>());
    if (line != last) out += line;
    last = line;
  }
  return out;
}

}  // namespace

int bench_command(const Arguments& arguments) {
  const nlohmann::json document = measure(arguments, "bench", kvplug_bench, {"runs", numbers, table, before, after});
  return worst_row(document["runs"]);
}

}  // namespace kvplug::cli
