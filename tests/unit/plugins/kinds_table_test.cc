// SPDX-License-Identifier: Apache-2.0
// The table of docs/kinds.md, asked of the plugins: probe, plan, lengths, flags, extensions, and each operation on a
// filled cache. The page must carry it word for word; the right one is written into the build folder.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "kinds.h"

namespace kvplug::test {
namespace {

constexpr int64_t kCapacity = 100;
constexpr char kBegin[] = "<!-- table -->\n", kEnd[] = "<!-- end of table -->\n";
const std::string kFolder = std::filesystem::temp_directory_path();

std::string word_of(int32_t status) {
  switch (status) {
    case KVP_OK: return "yes";
    case KVP_UNSUPPORTED: return "no";
    case KVP_INVALID_STATE: return "refused";
    case KVP_CAPACITY: return "no: CAPACITY";
    default: return "status " + std::to_string(status);
  }
}

LayerShape shape_of(int32_t kind) {
  return {4, 2, 8, 8, kind, kind == KVP_LAYER_SLIDING || kind == KVP_LAYER_CHUNKED ? 8 : 0};
}

int32_t probe(const Kind& kind, const LayerShape& shape, kvp_dtype dtype, bool quantizer, kvp_cache_info* out) {
  KindArgs args(kind, {shape}, dtype, 1, kCapacity);
  const kvp_qhandle handle{sizeof handle, nullptr, nullptr, "any"};
  if (quantizer && !kind.quantized) args.create.quantizer_key = args.create.quantizer_value = &handle;
  kvp_cache_info info{};
  info.struct_size = sizeof info;
  const int32_t status = iface_of(kind)->probe(&args.create, &info, nullptr);
  if (out != nullptr) *out = info;
  return status;
}

// The answer to an operation on a cache of one layer with two rows of 20 tokens.
std::string on_filled(const Kind& kind, int32_t layer, const std::function<int32_t(LoadedCache&)>& first,
                      const std::function<int32_t(LoadedCache&)>& ask) {
  const KindArgs args(kind, {shape_of(layer)}, kF32, 1, kCapacity);
  if (probe(kind, shape_of(layer), kF32, false, nullptr) != KVP_OK) return "-";  // no such layers
  LoadedCache cache(iface_of(kind), args.create);
  EXPECT_EQ(first ? first(cache) : KVP_OK, KVP_OK) << cache.text();
  const Values k = make(kF32, {2, 2, 20, 8});
  EXPECT_EQ(cache.update(0, k, k, nullptr, nullptr, nullptr, nullptr), KVP_OK) << cache.text();
  return word_of(ask(cache));
}

std::string extensions(const Kind& kind) {
  std::string all;
  for (const char* id :
       {KVP_EXT_ATTEND, KVP_EXT_STATE, KVP_EXT_INDEX, KVP_EXT_CAPTURE, KVP_EXT_OFFLOAD, KVP_EXT_SNAPSHOT}) {
    if (iface_of(kind)->get_extension(id) == nullptr) continue;
    all += (all.empty() ? "`" : ", `") + std::string(id) + "`";
  }
  return all;
}

std::string options(const Kind& kind) {
  std::string all;
  const auto schema = nlohmann::json::parse(descriptor_of(kind).options_schema);
  for (const auto& [key, value] : schema.at("properties").items()) {
    all += (all.empty() ? "`" : ", `") + key + "` (" + value.at("default").dump() + ")";
  }
  return all.empty() ? "none" : all;
}

std::string tiers(const Kind& kind, const std::string& folder) {
  const LayerShape s = shape_of(KVP_LAYER_FULL);
  const KindArgs args(kind, {s, s, s, s}, kF32, 1, kCapacity, folder);
  const kvp_memory plan = plan_of(kind, args.create, 1, kCapacity);
  const auto bytes = [&](int32_t tier) { return plan.reserved[tier][KVP_PURPOSE_KV]; };
  if (bytes(KVP_TIER_FILE) == 0) return "memory";
  // What of the four layers is in memory.
  return "file, " + std::to_string(bytes(KVP_TIER_HOST) * 4 / bytes(KVP_TIER_FILE)) + " layers in memory";
}

std::string longest(const Kind& kind, int32_t layer) {
  const KindArgs args(kind, {shape_of(layer)}, kF32, 1, kCapacity);
  LoadedCache cache(iface_of(kind), args.create);
  const int64_t max = cache.lengths(0, 1).max;
  return max == -1 ? "no end" : max == kCapacity ? "the capacity" : std::to_string(max);
}

struct Line {
  const char* what;
  std::function<std::string(const Kind&)> cell;
};

std::vector<Line> lines() {
  std::vector<Line> all;
  const auto serves = [&](const char* what, int32_t layer) {
    all.push_back(
        {what, [layer](const Kind& kind) { return word_of(probe(kind, shape_of(layer), kF32, false, nullptr)); }});
  };
  serves("full attention", KVP_LAYER_FULL);
  serves("sliding window", KVP_LAYER_SLIDING);
  serves("chunked attention", KVP_LAYER_CHUNKED);
  serves("cross attention", KVP_LAYER_CROSS);
  serves("recurrent and convolution state", KVP_LAYER_STATE);
  all.push_back({"float32, bfloat16, float16", [](const Kind& kind) {
                   int32_t status = KVP_OK;
                   for (const kvp_dtype dtype : {kF32, kBF16, kF16}) {
                     status = std::max(status, probe(kind, shape_of(KVP_LAYER_FULL), dtype, false, nullptr));
                   }
                   return word_of(status);
                 }});
  all.push_back({"takes a quantizer",
                 [](const Kind& kind) { return word_of(probe(kind, shape_of(KVP_LAYER_FULL), kF32, true, nullptr)); }});
  all.push_back({"gives back what it was given", [](const Kind& kind) {
                   kvp_cache_info info{};
                   probe(kind, shape_of(KVP_LAYER_FULL), kF32, false, &info);
                   return std::string((info.flags & KVP_CACHE_LOSSY) != 0 ? "no" : "yes, to the bit");
                 }});
  all.push_back({"where K/V lie", [](const Kind& kind) { return tiers(kind, ""); }});
  all.push_back({"the same with `disk_path`", [](const Kind& kind) {
                   return kind.offloaded ? tiers(kind, kFolder) : std::string("no such option");
                 }});
  all.push_back({"longest row", [](const Kind& kind) { return longest(kind, KVP_LAYER_FULL); }});
  all.push_back({"longest row, every layer a window that fits",
                 [](const Kind& kind) { return longest(kind, KVP_LAYER_SLIDING); }});
  all.push_back({"a row beyond 100 tokens, 100 being given as `tokens`", [](const Kind& kind) {
                   return on_filled(kind, KVP_LAYER_FULL, nullptr, [](LoadedCache& cache) {
                     const Values k = make(kF32, {2, 2, 81, 8});
                     return cache.update(0, k, k, nullptr, nullptr, nullptr, nullptr);
                   });
                 }});
  const auto operation = [&](const char* what, int32_t layer, std::function<int32_t(LoadedCache&)> ask,
                             std::function<int32_t(LoadedCache&)> first = nullptr) {
    all.push_back({what, [=](const Kind& kind) { return on_filled(kind, layer, first, ask); }});
  };
  operation("`crop`, all rows alike", KVP_LAYER_FULL, [](LoadedCache& c) { return c.crop({3}, KVP_CALL_CHECK); });
  operation("`crop`, each row by its own count", KVP_LAYER_FULL,
            [](LoadedCache& c) { return c.crop({3, 0}, KVP_CALL_CHECK); });
  operation("`crop` of all there is", KVP_LAYER_SLIDING, [](LoadedCache& c) { return c.crop({20}, KVP_CALL_CHECK); });
  operation("`crop` of a window that has passed", KVP_LAYER_SLIDING,
            [](LoadedCache& c) { return c.crop({3}, KVP_CALL_CHECK); });
  operation(
      "the same after `set_rollback`", KVP_LAYER_SLIDING, [](LoadedCache& c) { return c.crop({3}, KVP_CALL_CHECK); },
      [](LoadedCache& c) { return c.set_rollback(3); });
  operation("`crop` of an encoder's tokens", KVP_LAYER_CROSS, [](LoadedCache& c) {
    const int32_t status = c.crop({3});
    return status == KVP_OK && c.lengths(0, 0).seen == 20 ? KVP_UNSUPPORTED : status;
  });
  operation("`gather`: reorder, repeat, select, drop rows", KVP_LAYER_SLIDING,
            [](LoadedCache& c) { return c.gather({1, 0, 1, -1}, KVP_CALL_CHECK); });
  operation("`set_rollback`", KVP_LAYER_SLIDING, [](LoadedCache& c) { return c.set_rollback(30, KVP_CALL_CHECK); });
  operation("`reserve`", KVP_LAYER_FULL, [](LoadedCache& c) { return c.reserve(2, 50, KVP_CALL_CHECK); });
  operation("`reset`", KVP_LAYER_SLIDING, [](LoadedCache& c) { return c.reset(); });
  all.push_back({"`clone`", [](const Kind& kind) {
                   return on_filled(kind, KVP_LAYER_SLIDING, nullptr, [&](LoadedCache& c) {
                     kvp_cache* copy = nullptr;
                     const int32_t status = c.clone(2, &copy);
                     iface_of(kind)->destroy(copy);
                     return status;
                   });
                 }});
  all.push_back({"K/V never move in memory", [](const Kind& kind) {
                   const auto stable = [&](const std::string& folder) {
                     const KindArgs args(kind, {shape_of(KVP_LAYER_FULL)}, kF32, 1, kCapacity, folder);
                     kvp_cache_info info{};
                     info.struct_size = sizeof info;
                     EXPECT_EQ(iface_of(kind)->probe(&args.create, &info, nullptr), KVP_OK);
                     return std::string((info.flags & KVP_CACHE_STABLE_ADDRESS) != 0 ? "yes" : "no");
                   };
                   const std::string always = stable("");
                   if (!kind.offloaded || stable(kFolder) == always) return always;
                   return always + "; with `disk_path`: " + stable(kFolder);
                 }});
  all.push_back({"extensions", extensions});
  all.push_back({"options (default)", options});
  return all;
}

std::string table() {
  std::string text = "| |", rule = "|---|";
  for (const Kind& kind : kKinds) {
    text += " `" + std::string(kind.name) + "` |";
    rule += "---|";
  }
  text += "\n" + rule + "\n";
  for (const Line& line : lines()) {
    text += "| " + std::string(line.what) + " |";
    for (const Kind& kind : kKinds) text += " " + line.cell(kind) + " |";
    text += "\n";
  }
  return text;
}

TEST(KindsTable, StandsInThePage) {
  const std::string right = table();
  const char* made = KVPLUG_TEST_BUILD "/kinds_table.md";
  std::ofstream(made) << right;
  std::ifstream in(KVPLUG_TEST_DOCS "/kinds.md");
  const std::string page((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end)
      << "docs/kinds.md has no place for it";
  const size_t from = begin + std::size(kBegin) - 1;
  EXPECT_EQ(page.substr(from, end - from), right) << "copy the right table from " << made;
}

}  // namespace
}  // namespace kvplug::test
