// SPDX-License-Identifier: Apache-2.0
#include "cli/tables.h"

#include <fmt/format.h>

#include <map>
#include <vector>

namespace kvplug::cli {
namespace {

std::string list_text(const nlohmann::json& list) {
  std::string out;
  for (const auto& item : list)
    out += (out.empty() ? "" : ", ") + (item.is_string() ? item.get<std::string>() : item.dump());
  return out.empty() ? "none" : out;
}

std::string value_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string layers_text(const nlohmann::json& layers) {
  // Runs of layers that are served alike, as "0..29".
  std::string out;
  for (size_t i = 0; i < layers.size();) {
    size_t last = i;
    const auto same = [&](const nlohmann::json& a, const nlohmann::json& b) {
      return a["kind"] == b["kind"] && a["plugin"] == b["plugin"] && a["attend"] == b["attend"] &&
             a["reason"] == b["reason"];
    };
    while (last + 1 < layers.size() && same(layers[i], layers[last + 1])) ++last;
    const auto& at = layers[i];
    const std::string range = i == last ? at["layer"].dump() : at["layer"].dump() + ".." + layers[last]["layer"].dump();
    out += fmt::format(
        "  layers {:<8} {:<18} {:<14} attention: {}", range, value_text(at["kind"]),
        value_text(at["plugin"]) + (at.contains("quantizer_key") ? " " + value_text(at["quantizer_key"]) : ""),
        value_text(at["attend"]));
    if (const std::string reason = value_text(at["reason"]); !reason.empty()) out += "  (" + reason + ")";
    out += "\n";
    i = last + 1;
  }
  return out;
}

// The layers of a cache and what is to be said of it.
std::string served_text(const nlohmann::json& cache) {
  std::string out = layers_text(cache["layers"]);
  for (const auto& advice : cache["advice"]) out += "advice: " + value_text(advice) + "\n";
  return out;
}

void settings_lines(const std::string& prefix, const nlohmann::json& node, std::string& out) {
  if (node.is_object() && node.contains("value") && node.contains("origin")) {
    if (node["origin"] == "default") return;
    if (node["value"].is_object()) {
      settings_lines(prefix, node["value"], out);
      return;
    }
    out += fmt::format("  {:<42} {:<30} {}\n", prefix, node["value"].dump(), value_text(node["origin"]));
    return;
  }
  if (!node.is_object()) return;
  for (const auto& [key, child] : node.items()) settings_lines(prefix.empty() ? key : prefix + "." + key, child, out);
}

// "       3968 tokens" behind the bytes of what is packed and what is not.
std::string tokens_text(const nlohmann::json& plan, std::string_view purpose) {
  if (plan["packed_tokens"].is_null() || (purpose != "packed" && purpose != "residual")) return "";
  const int64_t packed = plan["packed_tokens"];
  return fmt::format("{:>16} tokens", purpose == "packed" ? packed : plan["tokens"].get<int64_t>() - packed);
}

// "quantized (quanto, K 4 bit, V 4 bit, group 64, residual 128)", from what the cache is made with.
std::string kind_text(const nlohmann::json& plan) {
  std::string out = value_text(plan["cache_implementation"]);
  for (const auto& choice : plan["choices"]) {
    if (choice["backend"].is_null()) continue;
    const auto &key = choice["key"], &value = choice["value"], &options = choice["options"];
    out += " (" + value_text(choice["backend"]);
    for (const auto& [name, part] : {std::pair{"K", &key}, std::pair{"V", &value}}) {
      if (part->contains("nbits")) out += fmt::format(", {} {} bit", name, (*part)["nbits"].dump());
      if (part->contains("fp8_format")) out += fmt::format(", {} {}", name, value_text((*part)["fp8_format"]));
    }
    if (key.contains("q_group_size")) out += ", group " + key["q_group_size"].dump();
    if (options.contains("residual_length")) out += ", residual " + options["residual_length"].dump();
    return out + ")";
  }
  return out;
}

// "fits (limit 8.00 GB, of the device 4.00 GB)"
std::string fits_text(const nlohmann::json& plan) {
  const uint64_t host = plan["limit_host_bytes"], device = plan["limit_device_bytes"];
  if (host == 0 && device == 0) return "limit unknown";
  return fmt::format("{} (limit {}{})", plan["fits"].get<bool>() ? "fits" : "does not fit",
                     host ? bytes_text(host) : "unknown", device ? ", of the device " + bytes_text(device) : "");
}

}  // namespace

std::string bytes_text(uint64_t bytes) {
  if (bytes >= 1000000000) return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
  if (bytes >= 1000000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
  if (bytes >= 1000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) * 1e-3);
  return fmt::format("{} B", bytes);
}

std::string plan_text(const nlohmann::json& plan) {
  const auto& model = plan["model"];
  const std::string path = model["path"];
  const bool cached = !plan["cache_implementation"].is_null();
  std::string out = fmt::format("{}  {} layers  {}  {}  batch {}  {} tokens\n", path.substr(path.find_last_of('/') + 1),
                                model["layers"].dump(), value_text(model["dtype"]),
                                cached ? kind_text(plan) : "no cache", plan["batch"].dump(), plan["tokens"].dump());
  if (!plan["max_cache_len"].is_null()) out += "max_cache_len " + plan["max_cache_len"].dump() + "\n";
  out += fmt::format("{:<22}{:<17}device\n", "", "host");
  static const std::vector<std::pair<const char*, const char*>> kNames = {
      {"weights", "weights"},      {"kv", "K/V"},      {"packed", "K/V packed"}, {"residual", "K/V residual"},
      {"scales", "scales, zeros"}, {"state", "state"}, {"rollback", "rollback"}, {"scratch", "scratch"},
      {"other", "other"}};
  uint64_t host = 0, device = 0;
  for (const auto& [purpose, name] : kNames) {
    if (!plan["totals"].contains(purpose)) continue;
    const auto& tiers = plan["totals"][purpose];
    const uint64_t here = tiers.value("host", uint64_t{0}) + tiers.value("pinned", uint64_t{0}),
                   there = tiers.value("device", uint64_t{0}), file = tiers.value("file", uint64_t{0});
    host += here;
    device += there;
    out += fmt::format("{:<22}{:<17}{}{}{}\n", name, here ? bytes_text(here) : "-", there ? bytes_text(there) : "-",
                       file ? "            and " + bytes_text(file) + " in files" : "", tokens_text(plan, purpose));
  }
  out += fmt::format("{:<22}{:<17}{:<13}{}\n", "total", bytes_text(host), device ? bytes_text(device) : "-",
                     fits_text(plan));
  uint64_t held = 0;  // for keys and values; scratch is none of them
  for (const char* purpose : {"kv", "packed", "residual", "scales"}) {
    if (!plan["totals"].contains(purpose)) continue;
    for (const auto& [tier, bytes] : plan["totals"][purpose].items()) held += bytes.get<uint64_t>();
  }
  const uint64_t plain = plan["unquantized_bytes"];
  if (cached && held != 0 && plain > held) {
    out += fmt::format("dynamic would take {} for K/V; this takes {} ({:.1f} times less)\n", bytes_text(plain),
                       bytes_text(held), static_cast<double>(plain) / static_cast<double>(held));
  }
  if (plan.contains("oom_fallback") && !plan["oom_fallback"].is_null()) {
    out += "\nif memory runs out\n" + plan_text(plan["oom_fallback"]);
  }
  return out;
}

std::string explain_text(const nlohmann::json& explain) {
  const auto& model = explain["model"];
  std::string out =
      fmt::format("model     {} ({}), {} layers, {} parameters, computed in {} (checkpoint: {})\n",
                  value_text(model["path"]), value_text(model["architecture"]), model["layers"].dump(),
                  model["parameters"].dump(), value_text(model["dtype"]), value_text(model["checkpoint_dtype"]));
  const auto& cache = explain["cache"];
  const auto& executor = explain["executor"];
  if (cache["implementation"].is_null()) {
    out += "cache     none (use_cache = false)\n";
  } else {
    out += fmt::format("cache     {}; needed: {}\n", value_text(cache["implementation"]), list_text(cache["require"]));
    if (!cache["max_cache_len"].is_null()) {
      out += fmt::format("capacity  {} tokens a row (max_cache_len)\n", cache["max_cache_len"].dump());
    }
    out += served_text(cache);
    const auto& prepared = cache["prepared_step"];
    const auto answer = [](const nlohmann::json& step) {
      return step["used"].get<bool>() ? "yes" : "no (" + value_text(step["reason"]) + ")";
    };
    out += "prepared step: " + answer(prepared) + "\n";
    if (executor.contains("device")) out += "captured step: " + answer(cache["captured_step"]) + "\n";
    if (const auto& other = cache["oom_fallback"]; !other.is_null()) {
      out += fmt::format("if memory runs out: {}\n", value_text(other["implementation"])) + served_text(other);
    }
  }
  out += fmt::format("stop ids  {}\n", list_text(model["eos_token_id"]));
  if (executor.contains("error")) {
    out += "products  unknown: " + value_text(executor["error"]) + "\n";
  } else if (executor.contains("device")) {
    out += "products  LibTorch's, on " + value_text(executor["device"]) + "\n";
  } else {
    out += fmt::format("products  {} threads, deterministic: {}\n", executor["threads"].dump(),
                       executor["deterministic"].dump());
    for (const auto& linear : executor["linear"]) {
      out += fmt::format("  {:>4} x {:<20} {:<14} {:<9} {}\n", linear["count"].dump(), value_text(linear["name"]),
                         linear["shape"].dump(), value_text(linear["backend"]), value_text(linear["implementation"]));
    }
  }
  std::string settings;
  settings_lines("", explain["settings"], settings);
  out += "settings that are not defaults\n" + settings;
  if (!explain["without_effect"].empty())
    out += fmt::format("without effect: {}\n", list_text(explain["without_effect"]));
  for (const auto& notice : explain["notices"]) out += "notice: " + value_text(notice["text"]) + "\n";
  return out;
}

std::string doctor_text(const nlohmann::json& host) {
  const auto& machine = host["machine"];
  std::string out = fmt::format("kvplug {} (plugin ABI {})\n", value_text(host["kvplug"]), value_text(host["abi"]));
  out += fmt::format("processor  {}, {} cores ({})\n", machine.contains("cpu") ? value_text(machine["cpu"]) : "unknown",
                     machine["physical_cores"].dump(),
                     machine.contains("features") ? list_text(machine["features"]) : "features unknown");
  out += fmt::format("memory     {}, {} available\n", bytes_text(machine["memory_bytes"]),
                     bytes_text(machine["available_bytes"]));
  out += fmt::format("attention  {}\n", value_text(machine["attention_kernel"]));
  const auto& libraries = host["libraries"];
  if (libraries.contains("error")) {
    out += "executor   not usable: " + value_text(libraries["error"]) + "\n";
  } else {
    out += "executor  ";
    for (const auto& [name, version] : libraries.items()) out += " " + name + " " + value_text(version) + ";";
    out.back() = '\n';
  }
  return out + plugin_list_text(host);
}

std::string plugin_list_text(const nlohmann::json& host) {
  std::string out;
  for (const auto& plugin : host["plugins"]) {
    for (const auto& provided : plugin["provides"]) {
      out += fmt::format("{:<20} {:<16} {:<10} {:<14} {}\n", value_text(provided["name"]),
                         value_text(provided["interface"]), value_text(plugin["version"]), value_text(plugin["vendor"]),
                         value_text(plugin["summary"]));
    }
  }
  if (out.empty()) out = "no plugin found; searched:\n  " + list_text(host["searched"]) + "\n";
  for (const auto& problem : host["problems"]) out += "not used: " + value_text(problem) + "\n";
  return out;
}

std::string plugin_info_text(const nlohmann::json& plugin) {
  std::string out =
      fmt::format("{} {} by {} ({})\n{}\n", value_text(plugin["id"]), value_text(plugin["version"]),
                  value_text(plugin["vendor"]), value_text(plugin["license"]), value_text(plugin["summary"]));
  out +=
      fmt::format("library      {}\nmanifest     {}\nABI needed   {}\nconformance  {}\n", value_text(plugin["library"]),
                  value_text(plugin["manifest"]), value_text(plugin["abi"]), value_text(plugin["conformance"]));
  for (const auto& provided : plugin["provides"]) {
    out += fmt::format("provides     {} ({})\n", value_text(provided["name"]), value_text(provided["interface"]));
    if (!provided.contains("options") || !provided["options"].is_object() ||
        !provided["options"].contains("properties"))
      continue;
    for (const auto& [key, spec] : provided["options"]["properties"].items()) {
      out += fmt::format("  {:<22} {:<8} {}\n", key, spec.value("type", ""), spec.value("description", ""));
    }
  }
  return out;
}

}  // namespace kvplug::cli
