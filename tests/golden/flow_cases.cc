// SPDX-License-Identifier: Apache-2.0
// flow/: one cache over several calls. What counts is `no_cache`, the same continuation without any cache; of quantized
// caches, with hf_compat = "strict", what the reference did.
#include "golden/golden.h"

namespace kvplug::testing {
namespace {

Ids first_row(const json& rows) { return rows[0].get<Ids>(); }

// The ids behind `prompt` in a recorded sequence.
Ids tail(const json& sequences, size_t prompt) {
  const Ids all = first_row(sequences);
  return {all.begin() + static_cast<std::ptrdiff_t>(prompt), all.end()};
}

uint64_t cached_tokens(kvplug_session* session) { return json_from(kvplug_session_stats, session)["tokens"]; }

Play generate(Family& family, kvplug_session* session, const Ids& forced) {
  const auto overrides =
      make_config(family.host(), {{"config_version", 1}, {"generation", {{"max_new_tokens", forced.size()}}}});
  return play(session, 1, overrides.get(), {forced});
}

bool is_quantized(const std::string& kind) { return kind.starts_with("quantized"); }

// A kind with the room that the recorded static caches had; offloaded kinds keep K/V in files; quantized ones are named
// by their backend.
json generation_of(const std::string& kind) {
  if (is_quantized(kind)) {
    json options = {{"backend", kind.substr(kind.find('_') + 1)}, {"hf_compat", "strict"}};
    if (options["backend"] == "quanto") options.update({{"q_group_size", 8}, {"residual_length", 4}});
    return {{"cache_implementation", "quantized"}, {"cache_config", options}};
  }
  json generation = {{"cache_implementation", kind}};
  if (kind.ends_with("static")) generation["max_cache_len"] = 64;
  if (kind.starts_with("offloaded")) {
    generation["cache_config"] = {{"disk_path", std::filesystem::temp_directory_path().string()},
                                  {"offload_only_non_sliding", false}};
  }
  return generation;
}

client::Session new_session(Family& family, const std::string& kind, const Ids& ids) {
  auto session = make_session(family.host(), family.model(), family.document(generation_of(kind)));
  append_rows(session.get(), {ids});
  return session;
}

// A session on a cache that keeps enough for crop, as activate_past_recording does.
client::Session recording_session(Family& family, const std::string& kind, const Ids& ids) {
  const auto config = make_config(family.host(), family.document(generation_of(kind)));
  const kvp_layer* layers = nullptr;
  size_t n = 0, stride = 0;
  client::call(kvplug_model_layers, family.model(), &layers, &n, &stride);
  kvplug_cache_params params{};
  params.struct_size = sizeof params;
  params.batch = -1;
  params.tokens = kind.ends_with("static") ? 64 : -1;
  params.device_type = KVP_DEVICE_CPU;
  params.dtype_code = KVP_DTYPE_FLOAT;
  params.dtype_bits = 32;
  const auto cache =
      client::make<client::Cache>(kvplug_cache_create, family.host(), layers, n, stride, config.get(), &params);
  const kvplug_status status = kvplug_cache_set_rollback(cache.get(), int64_t{1} << 40, nullptr);
  EXPECT_EQ(status, is_quantized(kind) ? KVP_UNSUPPORTED : KVP_OK);
  const auto unnamed = make_config(family.host(), family.document(json::object()));
  auto session =
      client::make<client::Session>(kvplug_session_create_with_cache, family.model(), unnamed.get(), cache.get());
  append_rows(session.get(), {ids});
  return session;
}

// What a continuation is held against: the same without any cache, or, quantized, what the record did itself.
json wanted(const json& record, const char* sequences, const std::string& kind) {
  if (!is_quantized(kind)) return record["no_cache"];
  return {{"sequences", record[sequences]}, {"first_logits", record["first_logits"]}};
}

double tolerance(const Family& family, const std::string& kind) {
  const std::string id = !is_quantized(kind) ? "/forward/single" : "/quantized_hqq4_a1/single/greedy";
  return family.file().by_id(family.name() + id)["atol"];
}

// The ids that mean something: a record of fp8 ends in zeros where its logits are NaN, as a key beyond the scale of the
// first tokens became NaN. What attention makes of such keys is not compared.
size_t meaningful(const Ids& ids, const std::string& kind) {
  size_t n = ids.size();
  while (kind == "quantized_fp8" && n > 0 && ids[n - 1] == 0) --n;
  return n;
}

void expect_choices(const Play& got, const Ids& want, const std::string& kind) {
  const size_t n = meaningful(want, kind);
  const Ids ours = choices(got.rows[0]);
  ASSERT_GE(ours.size(), n);
  EXPECT_EQ(Ids(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(n)),
            Ids(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(n)));
}

// Goes on in `session` and holds it against the record: the ids, and the logits of the first step.
void check_continuation(Family& family, kvplug_session* session, const json& record, size_t prompt,
                        const std::string& kind) {
  const Ids want = tail(record["sequences"], prompt);
  const Play got = generate(family, session, want);
  expect_choices(got, want, kind);
  if (meaningful(want, kind) == 0) return;
  EXPECT_LE(distance(got.rows[0].at(0).logits, family.file().tensors.at(record["first_logits"]).floats()),
            tolerance(family, kind));
}

void check_chat(Family& family, const json& c, const std::string& kind) {
  const Ids turn1 = first_row(c["turn1"]), turn2 = first_row(c["turn2"]);
  const auto session = new_session(family, kind, turn1);
  const Ids answer = tail(c["out1"], turn1.size());
  expect_choices(generate(family, session.get(), answer), answer, kind);
  EXPECT_EQ(cached_tokens(session.get()), c["length_between"]);
  EXPECT_EQ(set_ids(session.get(), 0, turn2), c["length_between"]);
  check_continuation(family, session.get(), wanted(c, "out2", kind), turn2.size(), kind);
  EXPECT_EQ(cached_tokens(session.get()), c["cache"]["seq_length"]);
}

void check_prefix(Family& family, const json& c, const std::string& kind) {
  const auto base = new_session(family, kind, first_row(c["prefix"]));
  generate(family, base.get(), {0});
  EXPECT_EQ(cached_tokens(base.get()), c["prefix_length"]);
  for (const json& run : c["runs"]) {
    const auto copy = client::make<client::Session>(kvplug_session_clone, base.get());
    const Ids ids = first_row(run["input_ids"]);
    EXPECT_EQ(set_ids(copy.get(), 0, ids), c["prefix_length"]);
    check_continuation(family, copy.get(), wanted(run, "sequences", kind), ids.size(), kind);
    EXPECT_EQ(cached_tokens(base.get()), c["prefix_length"]) << "the original has changed";
  }
}

// What a crop must leave is recorded where the reference could do it: in the case itself, or in the same one of the
// growing cache, with or without recording.
const json* cropped_record(const Family& family, const json& c) {
  const std::string n = std::to_string(c["crop"].get<int64_t>());
  if (c.contains("input_ids2")) return &c;
  for (const char* how : {"plain", "recording"}) {
    const json& other = family.file().by_id(family.name() + "/flow/crop/dynamic/" + how + "/" + n);
    if (other.contains("input_ids2")) return &other;
  }
  return nullptr;
}

// A window that has filled, without recording: its past is gone, so that only emptying can work.
bool window_is_full(const Family& family, const json& c) {
  const json& before = family.file().by_id(family.name() + "/flow/crop/dynamic/plain/0")["before"];
  for (size_t i = 0; i < before["is_sliding"].size(); ++i) {
    if (before["is_sliding"][i] == true && before["max_length_per_layer"][i] <= c["before"]["seq_length"]) return true;
  }
  return false;
}

// The record could not copy the cache: a clone is held against a session that took the same steps alone.
void check_quantized_clone(Family& family, const json&, const std::string& kind) {
  const json& lossless = family.file().by_id(family.name() + "/flow/prefix/dynamic");
  const Ids prefix = first_row(lossless["prefix"]);
  const auto base = new_session(family, kind, prefix);
  generate(family, base.get(), {0});
  for (const json& run : lossless["runs"]) {
    const Ids ids = first_row(run["input_ids"]), forced = tail(run["sequences"], ids.size());
    const auto alone = new_session(family, kind, prefix),
               copy = client::make<client::Session>(kvplug_session_clone, base.get());
    generate(family, alone.get(), {0});
    EXPECT_EQ(set_ids(copy.get(), 0, ids), prefix.size());
    EXPECT_EQ(set_ids(alone.get(), 0, ids), prefix.size());
    const Play want = generate(family, alone.get(), forced), got = generate(family, copy.get(), forced);
    ASSERT_EQ(got.rows[0].size(), want.rows[0].size());
    for (size_t i = 0; i < forced.size(); ++i) EXPECT_EQ(got.rows[0][i].logits, want.rows[0][i].logits) << i;
  }
}

// session: new, with the prompt; recording if the record says so.
void check_crop_of(Family& family, const json& c, const std::string& kind, const client::Session& session) {
  const Ids prompt = first_row(c["input_ids"]);
  const bool recording = c["recording"] == true;
  const Ids answer = tail(c["sequences"], prompt.size());
  expect_choices(generate(family, session.get(), answer), answer, kind);
  const int64_t seen = c["before"]["seq_length"], crop = c["crop"];
  ASSERT_EQ(cached_tokens(session.get()), seen);
  // The record counts cached tokens, negative = remove; a session counts ids, one of which is not cached yet.
  const int64_t n_remove = crop > 0 ? -crop : crop == 0 ? 0 : -crop + 1;
  const kvplug_status status = kvplug_session_crop(session.get(), &n_remove, 1, nullptr);
  const bool part = crop < 0 && -crop < seen;
  const bool gone = part && (is_quantized(kind) || (!recording && window_is_full(family, c)));
  if (crop > 0 || gone) {
    EXPECT_EQ(status, crop > 0 ? KVP_INVALID_ARGUMENT : is_quantized(kind) ? KVP_UNSUPPORTED : KVP_INVALID_STATE);
    EXPECT_EQ(cached_tokens(session.get()), seen);
    return;
  }
  ASSERT_EQ(status, KVP_OK);
  const int64_t kept = std::max<int64_t>(0, seen + crop);
  EXPECT_EQ(cached_tokens(session.get()), kept);
  const json* record = cropped_record(family, c);
  if (record == nullptr) return;
  const Ids next = first_row((*record)["input_ids2"]);
  EXPECT_EQ(set_ids(session.get(), 0, next), kept);
  check_continuation(family, session.get(), wanted(*record, "sequences2", kind), next.size(), kind);
}

void check_crop(Family& family, const json& c, const std::string& kind) {
  const Ids prompt = first_row(c["input_ids"]);
  if (c["recording"] != true) return check_crop_of(family, c, kind, new_session(family, kind, prompt));
  check_crop_of(family, c, kind, recording_session(family, kind, prompt));
  if (is_quantized(kind)) return;  // strict, which refuses when its cache is made
  const client::Session session = new_session(family, kind, prompt);
  client::call(kvplug_session_set_rollback, session.get(), int64_t{1} << 40);
  check_crop_of(family, c, kind, session);
}

}  // namespace

void add_flow_case(Tally& tally, const std::shared_ptr<Family>& family, const json& c,
                   const std::set<std::string>& kinds) {
  const std::string id = c["id"], name = id.substr(id.find('/') + 1);
  const std::string flow = name.substr(5, name.find('/', 5) - 5);
  const std::string rest = name.substr(5 + flow.size() + 1), kind = rest.substr(0, rest.find('/'));
  // Each record holds for the offloaded twin of its kind as well.
  const auto add = [&](void (*check)(Family&, const json&, const std::string&)) {
    tally.run(family->name(), name, [family, &c, check, kind] {
      const std::vector<std::string> all = is_quantized(kind) ? std::vector<std::string>{kind}
                                           : kind == "static" ? std::vector<std::string>{"static", "offloaded_static"}
                                                              : std::vector<std::string>{"dynamic", "offloaded"};
      for (const std::string& own : all) {
        SCOPED_TRACE(own);
        check(*family, c, own);
      }
    });
  };
  if (const std::string why = missing_kind(kind, kinds); !why.empty()) {
    tally.skip(family->name(), why);
  } else if (flow == "chat") {
    add(check_chat);
  } else if (flow == "prefix" && is_quantized(kind) && c.contains("error")) {
    add(check_quantized_clone);
  } else if (flow == "prefix") {
    add(check_prefix);
  } else if (flow == "crop") {
    add(check_crop);
  } else {
    tally.skip(family->name(), "a session has no call for flow/" + flow + ": they run below it, in model_exec_test");
  }
}

}  // namespace kvplug::testing
