// SPDX-License-Identifier: Apache-2.0
// diff: caches against a baseline as tables; limits that were missed as an exit code.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/measure.h"
#include "cli/tables.h"
#include "cli/terminal.h"

namespace kvplug::cli {
namespace {

constexpr int kMissed = 7;

// JSON has no NaN: what is not a number comes as null.
std::string number(const nlohmann::json& value, const char* format, double factor = 1) {
  return value.is_null() ? "NaN" : fmt::format(fmt::runtime(format), factor * value.get<double>());
}

// Small numbers keep their digits.
std::string small(const nlohmann::json& value) {
  return value == 0 ? "0" : number(value, value.is_null() || value >= 0.01 ? "{:.4f}" : "{:.2e}");
}

std::vector<std::string> line(const std::string& name, const nlohmann::json& row) {
  if (row.contains("error")) return {name, "failed", "-", "-", "-", "-", "-", "-", "-", "-", "-"};
  const auto& at = row["first_divergence"];
  const auto& drift = row["attention_drift"];
  return {name,
          small(row["kl"]["mean"]),
          small(row["kl"]["median"]),
          small(row["kl"]["p99"]),
          small(row["kl"]["max"]),
          number(row["top1_agreement"], "{:.2f} %", 100),
          number(row["perplexity"], "{:.4f}"),
          number(row["ppl_ratio"], "{:.5f}"),
          bytes_text(row["kv_bytes"]),
          at.is_null() ? "-" : at["position"].dump(),
          drift["first_layer"].is_null() ? "-" : drift["first_layer"].dump()};
}

Table table(const nlohmann::json& document) {
  Table out{{"cache", "mean KL", "median", "99 %", "max", "same top-1", "perplexity", "ratio", "K/V used",
             "first other token", "drifts from layer"},
            {}};
  const auto& base = document["baseline"];
  out.rows.push_back({cache_text(base) + " (baseline)", "-", "-", "-", "-", "-",
                      base["perplexity"].is_null() ? "-" : number(base["perplexity"], "{:.4f}"), "1",
                      bytes_text(base["kv_bytes"]), "-", "-"});
  out.rows.push_back(line("noise floor", document["noise_floor"]));
  for (const auto& row : document["candidates"]) out.rows.push_back(line(cache_text(row), row));
  return out;
}

Table numbers(const nlohmann::json& document) {
  Table out{{"cache", "cache_config", "row", "kl_mean", "kl_median", "kl_p99", "kl_max", "top1_agreement", "perplexity",
             "ppl_ratio", "kv_bytes", "first_divergence", "first_layer", "error"},
            {}};
  const auto add = [&](const nlohmann::json& row, const char* what) {
    std::vector<std::string> cells{row["cache"].get<std::string>(), row["cache_config"].dump(), what};
    const auto put = [&](const nlohmann::json& value) { cells.push_back(value.is_null() ? "" : value.dump()); };
    const nlohmann::json none = nlohmann::json::object(), kl = row.value("kl", none);
    for (const char* key : {"mean", "median", "p99", "max"}) put(kl.value(key, nlohmann::json()));
    for (const char* key : {"top1_agreement", "perplexity", "ppl_ratio", "kv_bytes"})
      put(row.value(key, nlohmann::json()));
    const nlohmann::json at = row.value("first_divergence", nlohmann::json());
    put(at.is_null() ? at : at["position"]);
    put(row.value("attention_drift", none).value("first_layer", nlohmann::json()));
    cells.push_back(row.contains("error") ? row["error"]["message"].get<std::string>() : "");
    out.rows.push_back(std::move(cells));
  };
  add(document["noise_floor"], "noise_floor");
  for (const auto& row : document["candidates"]) add(row, "candidate");
  return out;
}

std::string before(const nlohmann::json& document) {
  const std::string path = document["model"]["path"];
  return fmt::format("{}  {}  {} positions of {} text{}, {} at a time\nnoise floor: {}\n\n",
                     path.substr(path.find_last_of('/') + 1), document["model"]["dtype"].get<std::string>(),
                     document["positions"].dump(), document["texts"].dump(), document["texts"] == 1 ? "" : "s",
                     document["chunk"].dump(), document["noise_floor"]["route"].get<std::string>());
}

// One token as it may stand in a line.
std::string shown(const nlohmann::json& token) {
  const std::string text = token["text"];
  return text.empty() ? "id " + token["id"].dump() : nlohmann::json(text).dump();
}

std::string after(const nlohmann::json& document) {
  std::string out;
  for (const auto& row : document["candidates"]) {
    if (row.contains("error")) {
      out += fmt::format("{} failed: {}\n", cache_text(row), row["error"]["message"].get<std::string>());
      continue;
    }
    const auto& at = row["first_divergence"];
    if (at.is_null()) continue;
    out += fmt::format("{}: first other token at {} of \"{}\", after {}: {} becomes {}\n", cache_text(row),
                       at["position"].dump(), at["text"].get<std::string>(), at["after"].dump(), shown(at["baseline"]),
                       shown(at["candidate"]));
  }
  return out.empty() ? out : "\n" + out;
}

}  // namespace

int diff_command(const Arguments& arguments) {
  const nlohmann::json document =
      measure(arguments, "diff", kvplug_diff, {"candidates", numbers, table, before, after});
  for (const auto& miss : document["missed"]) {
    std::fprintf(stderr, "%s %s: %s is %s, the limit is %s\n", in_color("31", "missed:").c_str(),
                 cache_text(miss).c_str(), miss["key"].get<std::string>().c_str(),
                 miss["value"].is_null() ? "not a number" : miss["value"].dump().c_str(), miss["limit"].dump().c_str());
  }
  return document["missed"].empty() ? worst_row(document["candidates"]) : kMissed;
}

}  // namespace kvplug::cli
