// SPDX-License-Identifier: Apache-2.0
// errors.json: calls that the reference refuses, names it accepts, defaults. Ids are those of the tiny Llama after the
// prompt 5 6 7 8. Where we serve what the reference cannot, or refuse what it gets wrong, the case says so.
#include <functional>

#include "golden/golden.h"

namespace kvplug::testing {
namespace {

const Ids kPrompt = {5, 6, 7, 8};

struct Place {
  std::map<std::string, std::shared_ptr<Family>> families;
  Family& family(const std::string& name) const { return *families.at(name); }
  Family& llama() const { return family("llama"); }
};

json with(json generation) {
  if (!generation.contains("max_new_tokens") && !generation.contains("max_length")) generation["max_new_tokens"] = 3;
  return generation;
}

Ids generate(kvplug_session* session) { return choices(play(session, 1).rows[0]); }

Ids generate(Family& family, json generation) {
  const auto session = make_session(family.host(), family.model(), family.document(with(std::move(generation))));
  append_rows(session.get(), {kPrompt});
  return generate(session.get());
}

Ids recorded(const json& c) {
  const Ids all = c["result"][0].is_array() && c["result"][0][0].is_array() ? c["result"][0][0].get<Ids>()
                                                                            : c["result"][0].get<Ids>();
  return {all.begin() + static_cast<std::ptrdiff_t>(kPrompt.size()), all.end()};
}

// The status that `work` is refused with, and `words` in its text.
template <class Work>
void expect_refused(kvplug_status status, const std::string& words, Work work) {
  try {
    work();
    ADD_FAILURE() << "was not refused";
  } catch (const client::Failure& failure) {
    EXPECT_EQ(failure.status(), status) << failure.what();
    EXPECT_NE(std::string(failure.what()).find(words), std::string::npos) << failure.what();
  }
}

client::Cache make_cache(Family& family, const std::string& kind, int64_t tokens) {
  const auto config = make_config(family.host(), family.document({{"cache_implementation", kind}}));
  const kvp_layer* layers = nullptr;
  size_t n = 0, stride = 0;
  client::call(kvplug_model_layers, family.model(), &layers, &n, &stride);
  kvplug_cache_params params{};
  params.struct_size = sizeof params;
  params.batch = -1;
  params.tokens = tokens;
  params.device_type = KVP_DEVICE_CPU;
  params.dtype_code = KVP_DTYPE_FLOAT;
  params.dtype_bits = 32;
  return client::make<client::Cache>(kvplug_cache_create, family.host(), layers, n, stride, config.get(), &params);
}

client::Session session_on(Family& family, const client::Cache& cache, json generation) {
  const auto config = make_config(family.host(), family.document(with(std::move(generation))));
  auto session =
      client::make<client::Session>(kvplug_session_create_with_cache, family.model(), config.get(), cache.get());
  append_rows(session.get(), {kPrompt});
  return session;
}

void check_word(const Place& at, const json& c, const std::string& word) {
  const auto run = [&] { return generate(at.llama(), {{"cache_implementation", word}}); };
  if (c.contains("result")) {
    EXPECT_EQ(run(), recorded(c));
  } else {
    expect_refused(KVPLUG_E_CONFIG, "cache_implementation", run);
  }
}

// A conversation that was cached further than, or as far as, what is asked for next.
void check_refeed(const Place& at, const Ids& first) {
  const auto session =
      make_session(at.llama().host(), at.llama().model(), at.llama().document({{"max_new_tokens", 2}}));
  append_rows(session.get(), {first});
  generate(session.get());
  set_ids(session.get(), 0, kPrompt);
  EXPECT_EQ(generate(session.get()), generate(at.llama(), {{"max_new_tokens", 2}, {"use_cache", false}}));
}

// One token for each of `batch` rows, into layer 0.
kvplug_status update(kvplug_cache* cache, const kvp_layer& layer, int64_t batch) {
  std::vector<float> data(static_cast<size_t>(batch * layer.kv_heads * layer.key_dim));
  kvp_tensor t{};
  t.data = data.data();
  t.device_type = KVP_DEVICE_CPU;
  t.ndim = 4;
  t.dtype_code = KVP_DTYPE_FLOAT;
  t.dtype_bits = 32;
  t.dtype_lanes = 1;
  const int64_t shape[4] = {batch, layer.kv_heads, 1, layer.key_dim},
                strides[4] = {layer.kv_heads * layer.key_dim, layer.key_dim, layer.key_dim, 1};
  std::copy_n(shape, 4, t.shape);
  std::copy_n(strides, 4, t.strides);
  kvp_update_args args{};
  args.struct_size = sizeof args;
  args.k = args.v = &t;
  kvp_call call{};
  call.struct_size = sizeof call;
  call.device_type = KVP_DEVICE_CPU;
  return kvplug_cache_update(cache, &call, &args, nullptr, nullptr, nullptr);
}

void check_batch_mismatch(const Place& at, const std::string& kind) {
  const kvp_layer* layers = nullptr;
  size_t n = 0, stride = 0;
  client::call(kvplug_model_layers, at.llama().model(), &layers, &n, &stride);
  const auto cache = make_cache(at.llama(), kind, 16);
  ASSERT_EQ(update(cache.get(), layers[0], 1), KVP_OK);
  EXPECT_EQ(update(cache.get(), layers[0], 2), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(update(cache.get(), layers[0], 1), KVP_OK) << "the cache has changed";
}

// The layer list that caches are made for, against the classes of the reference.
void check_layers(Family& family, const json& c) {
  const kvp_layer* layers = nullptr;
  size_t n = 0, stride = 0;
  client::call(kvplug_model_layers, family.model(), &layers, &n, &stride);
  const json& want = c["result"]["dynamic"];
  ASSERT_EQ(n, want.size());
  for (size_t i = 0; i < n; ++i) {
    const auto& layer = *reinterpret_cast<const kvp_layer*>(reinterpret_cast<const char*>(layers) + i * stride);
    EXPECT_EQ(layer.kind != KVP_LAYER_FULL, want[i][0] == "DynamicSlidingWindowLayer") << i;
    EXPECT_EQ(layer.window, want[i][1].is_null() ? 0 : want[i][1].get<int64_t>()) << i;
  }
}

// Bytes that a kind would keep in files, with offload_only_non_sliding as given or by default.
uint64_t file_bytes(Family& family, const std::string& kind, const json& only_non_sliding) {
  json options = {{"disk_path", std::filesystem::temp_directory_path().string()}};
  if (!only_non_sliding.is_null()) options["offload_only_non_sliding"] = only_non_sliding;
  const auto config =
      make_config(family.host(), family.document({{"cache_implementation", kind}, {"cache_config", options}}));
  const kvp_layer* layers = nullptr;
  size_t n = 0, stride = 0;
  client::call(kvplug_model_layers, family.model(), &layers, &n, &stride);
  kvplug_cache_params params{};
  params.struct_size = sizeof params;
  params.batch = 1;
  params.tokens = 40;
  params.device_type = KVP_DEVICE_CPU;
  params.dtype_code = KVP_DTYPE_FLOAT;
  params.dtype_bits = 32;
  kvp_memory total{};
  total.struct_size = sizeof total;
  client::call(kvplug_cache_plan, family.host(), layers, n, stride, config.get(), &params, &total, nullptr);
  return total.reserved[KVP_TIER_FILE][KVP_PURPOSE_KV];
}

void check_default(const Place& at, const std::string& kind, const json& c) {
  const json wanted = c["result"]["offload_only_non_sliding"];
  Family& family = at.family("gemma2");
  EXPECT_EQ(file_bytes(family, kind, nullptr), file_bytes(family, kind, wanted));
  EXPECT_NE(file_bytes(family, kind, nullptr), file_bytes(family, kind, !wanted.get<bool>()));
}

using Check = std::function<void(const Place&, const json&)>;

const std::map<std::string, Check>& checks() {
  static const std::map<std::string, Check> all = {
      {"both/cache_and_implementation",
       [](const Place& at, const json&) {
         expect_refused(KVPLUG_E_CONFIG, "cache_implementation", [&] {
           session_on(at.llama(), make_cache(at.llama(), "dynamic", -1), {{"cache_implementation", "static"}});
         });
       }},
      {"use_cache_false/implementation",
       [](const Place& at, const json& c) {
         EXPECT_EQ(generate(at.llama(), {{"use_cache", false}, {"cache_implementation", "static"}}), recorded(c));
       }},
      {"use_cache_false/cache",  // the reference fills the cache and answers wrongly
       [](const Place& at, const json&) {
         expect_refused(KVPLUG_E_CONFIG, "use_cache",
                        [&] { session_on(at.llama(), make_cache(at.llama(), "dynamic", -1), {{"use_cache", false}}); });
       }},
      {"static/overflow",  // here before anything is computed
       [](const Place& at, const json&) {
         const auto session = session_on(at.llama(), make_cache(at.llama(), "static", 5), {{"max_new_tokens", 6}});
         expect_refused(KVP_CAPACITY, "5 tokens a row", [&] { generate(session.get()); });
         EXPECT_EQ(json_from(kvplug_session_stats, session.get())["tokens"], 0);
       }},
      {"static/exact_fit",
       [](const Place& at, const json& c) {
         const auto session = session_on(at.llama(), make_cache(at.llama(), "static", 6), {});
         EXPECT_EQ(generate(session.get()), recorded(c));
       }},
      {"static/zero",
       [](const Place& at, const json&) {
         expect_refused(KVP_INVALID_ARGUMENT, "capacity", [&] { make_cache(at.llama(), "static", 0); });
       }},
      {"static/no_length",
       [](const Place& at, const json&) {
         expect_refused(KVP_INVALID_ARGUMENT, "capacity", [&] { make_cache(at.llama(), "static", -1); });
       }},
      {"lengths/input_too_long",
       [](const Place& at, const json&) {
         expect_refused(KVP_INVALID_ARGUMENT, "max_length", [&] { generate(at.llama(), {{"max_length", 4}}); });
       }},
      {"lengths/max_new_0",
       [](const Place& at, const json&) {
         expect_refused(KVPLUG_E_CONFIG, "max_new_tokens", [&] { generate(at.llama(), {{"max_new_tokens", 0}}); });
       }},
      {"lengths/both",
       [](const Place& at, const json& c) {
         EXPECT_EQ(generate(at.llama(), {{"max_length", 50}, {"max_new_tokens", 2}}), recorded(c));
       }},
      {"lengths/default",
       [](const Place& at, const json& c) {
         Family& family = at.llama();
         const auto session = make_session(family.host(), family.model(), family.document(json::object()));
         append_rows(session.get(), {kPrompt});
         EXPECT_EQ(generate(session.get()).size() + kPrompt.size(), c["result"].get<size_t>());
       }},
      {"refeed/past_equals_input", [](const Place& at, const json&) { check_refeed(at, kPrompt); }},
      {"refeed/past_longer", [](const Place& at, const json&) { check_refeed(at, {5, 6, 7, 8, 9, 10, 11, 12}); }},
      {"offload/none_to_offload",  // runs here
       [](const Place& at, const json&) {
         json offloaded = {{"cache_implementation", "offloaded_static"}};
         offloaded["cache_config"] = {{"disk_path", std::filesystem::temp_directory_path().string()}};
         EXPECT_EQ(generate(at.family("mistral"), offloaded), generate(at.family("mistral"), {}));
       }},
      {"cache/static/batch_mismatch", [](const Place& at, const json&) { check_batch_mismatch(at, "static"); }},
      {"cache/dynamic/batch_mismatch", [](const Place& at, const json&) { check_batch_mismatch(at, "dynamic"); }},
      {"defaults/DynamicCache", [](const Place& at, const json& c) { check_default(at, "offloaded", c); }},
      {"defaults/StaticCache", [](const Place& at, const json& c) { check_default(at, "offloaded_static", c); }},
  };
  return all;
}

// Why a case has no counterpart here yet, or is proven elsewhere.
std::string reason_to_skip(const std::string& id) {
  const std::pair<const char*, const char*> reasons[] = {
      {"quantized/", "refusals of quantized caches are tested by quantized_test and core_test, not by these records"},
      {"cache_implementation/quantized",
       "refusals of quantized caches are tested by quantized_test and core_test, not by these records"},
      {"use_cache_false/config",
       "refusals of quantized caches are tested by quantized_test and core_test, not by these records"},
      {"defaults/quantized_layer",
       "refusals of quantized caches are tested by quantized_test and core_test, not by these records"},
      {"assisted/", "assisted decoding is not provided"},
      {"encdec/", "no encoder-decoder family is provided; their caches are tested as stacks"},
      {"cache/", "constructors of Python classes, or caches of state, which are not provided"},
      {"layers/", "the family is not provided"},
      {"mask/", "rows have lengths here, no masks"},
      {"both/tuple", "there are no tuples here"},
      {"config_v4/", "dialects of config.json are tested with the checkpoints"},
  };
  for (const auto& [prefix, why] : reasons) {
    if (id.starts_with(prefix)) return why;
  }
  return "";
}

}  // namespace

void add_error_cases(Tally& tally, const std::map<std::string, std::shared_ptr<Family>>& families) {
  const auto file = std::make_shared<GoldenFile>("errors");
  const auto place = std::make_shared<Place>(Place{families});
  for (const json& c : file->cases) {
    const std::string id = c["id"], rest = id.substr(id.find('/') + 1);
    const auto add = [&](Check check) { tally.run("errors", id, [file, place, &c, check] { check(*place, c); }); };
    if (const auto found = checks().find(id); found != checks().end()) {
      add(found->second);
    } else if (id.starts_with("layers/") && families.contains(rest)) {
      add([rest](const Place& at, const json& record) { check_layers(at.family(rest), record); });
    } else if (id.starts_with("cache_implementation/") && rest != "quantized") {
      const std::string word = rest == "empty" ? "" : rest;
      add([word](const Place& at, const json& record) { check_word(at, record, word); });
    } else if (const std::string why = reason_to_skip(id); !why.empty()) {
      tally.skip("errors", why);
    } else {
      add([](const Place&, const json&) { ADD_FAILURE() << "nothing is written for this case"; });
    }
  }
}

}  // namespace kvplug::testing
