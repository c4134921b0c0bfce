// SPDX-License-Identifier: Apache-2.0
// errors.json: calls that the reference refuses, names it accepts, defaults. Ids are those of the tiny Llama after the
// prompt 5 6 7 8. Where we serve what the reference cannot, or refuse what it gets wrong, the case says so.
#include <cstring>
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

// The plan of a kind with these options, for 40 tokens.
kvp_memory plan_of(Family& family, const std::string& kind, const json& options) {
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
  return total;
}

// Bytes that a kind would keep in files, with offload_only_non_sliding as given or by default.
uint64_t file_bytes(Family& family, const std::string& kind, const json& only_non_sliding) {
  json options = {{"disk_path", std::filesystem::temp_directory_path().string()}};
  if (!only_non_sliding.is_null()) options["offload_only_non_sliding"] = only_non_sliding;
  return plan_of(family, kind, options).reserved[KVP_TIER_FILE][KVP_PURPOSE_KV];
}

void check_default(const Place& at, const std::string& kind, const json& c) {
  const json wanted = c["result"]["offload_only_non_sliding"];
  Family& family = at.family("gemma2");
  EXPECT_EQ(file_bytes(family, kind, nullptr), file_bytes(family, kind, wanted));
  EXPECT_NE(file_bytes(family, kind, nullptr), file_bytes(family, kind, !wanted.get<bool>()));
}

json quantized(json options) {
  options["hf_compat"] = "strict";
  return {{"cache_implementation", "quantized"}, {"cache_config", std::move(options)}};
}

// quantized/BACKEND/KEY/VALUE: one option. What the reference notices at the first update is noticed earlier here, or
// there; and a negative residual is noticed at all.
void check_option(const Place& at, const json& c, const std::string& backend, const std::string& key, int64_t value) {
  const auto run = [&] { return generate(at.llama(), quantized({{"backend", backend}, {key, value}})); };
  if (c.contains("result") && key != "residual_length") {
    json options = {{"backend", backend}, {key, value}};
    if (backend == "quanto") options["q_group_size"] = 8;  // fits the prompt on each axis
    EXPECT_EQ(generate(at.llama(), quantized(options)).size(), 3U);
    return;
  }
  try {
    run();
    ADD_FAILURE() << "was not refused";
  } catch (const client::Failure& failure) {
    EXPECT_TRUE(failure.status() == KVPLUG_E_CONFIG || failure.status() == KVP_INVALID_ARGUMENT) << failure.what();
    // The plugin is given one option for keys and one for values, without the ending.
    const std::string stem =
        key.substr(0, key.find("_key") == std::string::npos ? key.find("_value") : key.find("_key"));
    EXPECT_NE(std::string(failure.what()).find(stem), std::string::npos) << failure.what();
    EXPECT_NE(std::string(failure.what()).find(backend == "fp8" ? "quanto" : std::to_string(value)), std::string::npos)
        << failure.what();
  }
}

void check_quantized_layers(Family& family) {
  expect_refused(KVP_UNSUPPORTED, "full_attention layers alone", [&] { generate(family, quantized(json::object())); });
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
      {"cache_implementation/quantized",
       [](const Place& at, const json& c) { EXPECT_EQ(generate(at.llama(), quantized(json::object())), recorded(c)); }},
      {"use_cache_false/config",
       [](const Place& at, const json& c) {
         json generation = quantized({{"backend", "hqq"}});
         generation["use_cache"] = false;
         EXPECT_EQ(generate(at.llama(), generation), recorded(c));
       }},
      {"quantized/backend/HQQ",  // any case is taken here, and in the next
       [](const Place& at, const json&) {
         EXPECT_EQ(generate(at.llama(), quantized({{"backend", "HQQ"}})),
                   generate(at.llama(), quantized({{"backend", "hqq"}})));
       }},
      {"quantized/backend/Quanto",
       [](const Place& at, const json&) {
         EXPECT_EQ(generate(at.llama(), quantized({{"backend", "Quanto"}})),
                   generate(at.llama(), quantized({{"backend", "quanto"}})));
       }},
      {"quantized/backend/foo",
       [](const Place& at, const json&) {
         expect_refused(KVPLUG_E_CONFIG,
                        "known quantizers: ", [&] { generate(at.llama(), quantized({{"backend", "foo"}})); });
       }},
      {"quantized/backend/",
       [](const Place& at, const json&) {
         expect_refused(KVPLUG_E_CONFIG, "cache_config.backend",
                        [&] { generate(at.llama(), quantized({{"backend", ""}})); });
       }},
      {"quantized/backend/None",
       [](const Place& at, const json&) {  // no value is the default
         EXPECT_EQ(generate(at.llama(), quantized({{"backend", nullptr}})),
                   generate(at.llama(), quantized({{"backend", "quanto"}})));
       }},
      {"quantized/no_backend",  // the default of generate() is the default here
       [](const Place& at, const json&) {
         EXPECT_EQ(generate(at.llama(), quantized(json::object())),
                   generate(at.llama(), quantized({{"backend", "quanto"}})));
       }},
      {"quantized/fp8/several",
       [](const Place& at, const json&) {
         expect_refused(KVPLUG_E_CONFIG, "backend \"fp8\" has no groups and takes no ",
                        [&] { generate(at.llama(), quantized({{"backend", "fp8"}, {"nbits", 4}, {"axis_key", 0}})); });
       }},
      {"quantized/unknown_option",
       [](const Place& at, const json&) {
         expect_refused(KVPLUG_E_CONFIG, "cache_config.foo: unknown key",
                        [&] { generate(at.llama(), quantized({{"backend", "quanto"}, {"foo", 1}})); });
       }},
      {"quantized/offloading",
       [](const Place& at, const json&) {
         expect_refused(KVPLUG_E_CONFIG, "cache_config.offloading: unknown key",
                        [&] { generate(at.llama(), quantized({{"backend", "quanto"}, {"offloading", true}})); });
       }},
      {"quantized/config_not_consumed",
       [](const Place& at, const json& c) {
         Family& family = at.llama();
         const auto config = make_config(family.host(), family.document(with(quantized(c["result"]))));
         Ids answers[2];
         for (Ids& answer : answers) {
           const auto session = client::make<client::Session>(kvplug_session_create, family.model(), config.get());
           append_rows(session.get(), {kPrompt});
           answer = generate(session.get());
         }
         EXPECT_EQ(answers[0], answers[1]);
       }},
      {"defaults/quantized_layer",
       [](const Place& at, const json& c) {
         for (const char* backend : {"quanto", "hqq"}) {
           json explicitly = c["result"];
           explicitly["backend"] = backend;
           const kvp_memory want = plan_of(at.llama(), "quantized", quantized(explicitly)["cache_config"]),
                            got = plan_of(at.llama(), "quantized", quantized({{"backend", backend}})["cache_config"]);
           EXPECT_EQ(std::memcmp(&want, &got, sizeof want), 0) << backend;
         }
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
      {"quantized/fp8/none_is_fine", "a run file has no null: a key that is not wanted is left out"},
      {"quantized/encoder_decoder", "no encoder-decoder family is provided; their caches are tested as stacks"},
      {"quantized/layer_types/", "the family is not provided"},
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

// Part i of an id, "" if there are not so many.
std::string word_of(const std::string& id, size_t i) {
  size_t begin = 0;
  for (; i > 0 && begin != std::string::npos; --i) {
    const size_t slash = id.find('/', begin);
    begin = slash == std::string::npos ? slash : slash + 1;
  }
  return begin == std::string::npos ? "" : id.substr(begin, id.find('/', begin) - begin);
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
    } else if (id.starts_with("quantized/layer_types/") && families.contains(word_of(id, 2))) {
      add([name = word_of(id, 2)](const Place& at, const json&) { check_quantized_layers(at.family(name)); });
    } else if (id.starts_with("quantized/") && !word_of(id, 3).empty() && word_of(id, 1) != "layer_types") {
      add([id](const Place& at, const json& record) {
        check_option(at, record, word_of(id, 1), word_of(id, 2), std::stoll(word_of(id, 3)));
      });
    } else if (id.starts_with("layers/") && families.contains(rest)) {
      add([rest](const Place& at, const json& record) { check_layers(at.family(rest), record); });
    } else if (id.starts_with("cache_implementation/")) {
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
