// SPDX-License-Identifier: Apache-2.0
// Caches in sessions, those of a fixed capacity above all: what they are made for, kept for, made anew for, and refused
// for.
#include <gtest/gtest.h>

#include <filesystem>

#include "integration/run_file.h"
#include "support/client.h"

namespace kvplug::testing {
namespace {

const Ids kIds(kPrompt.begin(), kPrompt.end());

client::Host new_host() { return client::make<client::Host>(kvplug_host_create, nullptr); }

json run_of(const char* kind, int64_t new_tokens = 24, const json& more = json::object()) {
  json keys = {{"cache_implementation", kind}, {"max_new_tokens", new_tokens}};
  keys.update(more);
  return run_document(model_folder("llama"), keys);
}

json counters(kvplug_session* session) { return json_from(kvplug_session_stats, session)["counters"]; }

struct Failed {
  kvplug_status status = KVP_OK;
  std::string text;
};

template <class F>
Failed failure_of(F&& work) {
  try {
    work();
  } catch (const client::Failure& failure) {
    return {failure.status(), failure.text()};
  }
  return {};
}

void expect_same(const Play& got, const Play& want) {
  for (size_t b = 0; b < want.rows.size(); ++b) {
    ASSERT_EQ(choices(got.rows[b]), choices(want.rows[b])) << b;
    for (size_t t = 0; t < want.rows[b].size(); ++t) EXPECT_EQ(got.rows[b][t].logits, want.rows[b][t].logits) << t;
  }
}

Play answer(kvplug_host* host, kvplug_model* model, const json& document, const std::vector<Ids>& rows) {
  const auto session = make_session(host, model, document);
  append_rows(session.get(), rows);
  return play(session.get(), rows.size());
}

TEST(Capacity, StaticGivesTheBitsOfDynamic) {
  const auto host = new_host();
  const auto model = load_model(host.get(), run_of("dynamic"));
  const std::vector<Ids> batch{kIds, {10, 26, 52, 88, 134, 190}, {10, 41, 130}};
  for (const auto& rows : {std::vector<Ids>{kIds}, batch}) {
    for (const json& more : {json::object(), json{{"do_sample", true}}, json{{"prefill_chunk_size", 3}}}) {
      expect_same(answer(host.get(), model.get(), run_of("static", 24, more), rows),
                  answer(host.get(), model.get(), run_of("dynamic", 24, more), rows));
    }
  }
}

TEST(Capacity, LongRequestThenShortOnesUseOneAllocation) {
  const auto host = new_host();
  const auto model = load_model(host.get(), run_of("static"));
  const auto session = make_session(host.get(), model.get(), run_of("static"));
  append_rows(session.get(), {kIds});
  play(session.get(), 1);
  const json before = json_from(kvplug_session_stats, session.get());
  EXPECT_EQ(before["counters"]["allocations"], 1);
  for (const Ids& ids : {Ids{1, 2, 3}, Ids{1, 2, 7, 9}, Ids{5}}) {
    set_ids(session.get(), 0, ids);
    expect_same(play(session.get(), 1), answer(host.get(), model.get(), run_of("dynamic"), {ids}));
  }
  const json after = json_from(kvplug_session_stats, session.get());
  EXPECT_EQ(after["counters"]["allocations"], 1);
  EXPECT_EQ(after["counters"]["cache_rebuilds"], 0);
  EXPECT_EQ(after["bytes"]["reserved"], before["bytes"]["reserved"]);
  EXPECT_EQ(after["bytes"]["planned"], before["bytes"]["planned"]);
}

// What only making a cache needs is not asked for again.
TEST(Session, LaterRunsNeedNoFolderOfFilesThatAreOpen) {
  const auto host = new_host();
  const TempFolder folder;
  const std::string path = folder / "kv";
  std::filesystem::create_directory(path);
  const json document = run_of("offloaded", 24, {{"cache_config", {{"disk_path", path}}}});
  const auto model = load_model(host.get(), document);
  const auto session = make_session(host.get(), model.get(), document);
  append_rows(session.get(), {kIds});
  play(session.get(), 1);
  std::filesystem::remove_all(path);
  const Ids more(90, 7);
  set_ids(session.get(), 0, more);
  expect_same(play(session.get(), 1), answer(host.get(), model.get(), run_of("dynamic"), {more}));
  const json bytes = json_from(kvplug_session_stats, session.get())["bytes"];
  EXPECT_EQ(bytes["planned"], bytes["reserved"]);

  const auto fresh = make_session(host.get(), model.get(), document);
  append_rows(fresh.get(), {kIds});
  EXPECT_EQ(failure_of([&] { play(fresh.get(), 1); }).status, KVP_IO);
}

TEST(Capacity, FewerRowsRunInTheSameMemory) {
  const auto host = new_host();
  const auto model = load_model(host.get(), run_of("static"));
  const auto session = make_session(host.get(), model.get(), run_of("static"));
  append_rows(session.get(), {kIds, kIds, kIds});
  play(session.get(), 3);
  client::call(kvplug_session_reset, session.get());
  append_rows(session.get(), {kIds});
  expect_same(play(session.get(), 1), answer(host.get(), model.get(), run_of("dynamic"), {kIds}));
  EXPECT_EQ(counters(session.get())["allocations"], 1);
  EXPECT_EQ(counters(session.get())["cache_rebuilds"], 0);
}

TEST(Capacity, WhatDoesNotFitIsComputedAgainInALargerCache) {
  const auto host = new_host();
  const auto model = load_model(host.get(), run_of("static"));
  const auto session = make_session(host.get(), model.get(), run_of("static", 4));
  append_rows(session.get(), {kIds, {10, 41, 130}});
  play(session.get(), 2);
  const auto more = make_config(host.get(), run_of("static", 30));
  const auto again = make_session(host.get(), model.get(), run_of("dynamic", 4));
  append_rows(again.get(), {kIds, {10, 41, 130}});
  play(again.get(), 2);
  const auto more_dynamic = make_config(host.get(), run_of("dynamic", 30));
  const Play got = play(session.get(), 2, more.get()), want = play(again.get(), 2, more_dynamic.get());
  for (size_t b = 0; b < 2; ++b) EXPECT_EQ(choices(got.rows[b]), choices(want.rows[b])) << b;
  EXPECT_EQ(counters(session.get())["cache_rebuilds"], 1);
  EXPECT_EQ(counters(session.get())["fused_attend_calls"], 2 * 34) << "of both caches";
}

TEST(Capacity, FixedByTheUserItIsAnErrorAndTheSessionStays) {
  const auto host = new_host();
  const auto model = load_model(host.get(), run_of("static"));
  const json document = run_of("static", 4, {{"max_cache_len", 16}});
  const auto session = make_session(host.get(), model.get(), document);
  append_rows(session.get(), {kIds});
  const Play first = play(session.get(), 1);
  EXPECT_EQ(first.finish[0], KVPLUG_FINISH_LENGTH);
  const auto more = make_config(host.get(), run_of("static", 30, {{"max_cache_len", 16}}));
  const Failed failed = failure_of([&] { play(session.get(), 1, more.get()); });
  EXPECT_EQ(failed.status, KVPLUG_E_CONFIG);
  EXPECT_NE(failed.text.find("16 positions are too few for this run: prompt 12 + max_new_tokens 30 - 1 = 41\n"
                             "  set max_cache_len to 41 or more, or use cache_implementation = \"dynamic\""),
            std::string::npos)
      << failed.text;
  EXPECT_EQ(play(session.get(), 1).rows[0].size(), 4u) << "12 + 4 - 1 fit";

  const RunFile file(llama_run("generation.cache_implementation = \"static\"\ngeneration.max_cache_len = 30\n"));
  expect_error(kvplug_program({"run", file.path()}), 2,
               {"generation.max_cache_len: 30 positions are too few", "prompt 8 + max_new_tokens 24 - 1 = 31"});
  expect_error(kvplug_program({"plan", file.path()}), 2, {"30 positions are too few"});
  EXPECT_EQ(kvplug_program({"run", file.path(), "--max-cache-len", "31"}).exit_code, 0);
}

class MadeFirst : public ::testing::Test {
 protected:
  MadeFirst() {
    client::call(kvplug_model_layers, model.get(), &layers, &n, &stride);
    params.struct_size = sizeof params;
    params.batch = params.tokens = -1;
    params.device_type = KVP_DEVICE_CPU;
    params.dtype_code = KVP_DTYPE_FLOAT;
    params.dtype_bits = 32;
  }
  client::Cache make(const json& generation, int64_t tokens) {
    params.tokens = tokens;
    const auto choice = make_config(host.get(), {{"config_version", 1}, {"generation", generation}});
    return client::make<client::Cache>(kvplug_cache_create, host.get(), layers, n, stride, choice.get(), &params);
  }

  client::Host host = new_host();
  client::Model model = load_model(host.get(), run_of("dynamic"));
  const kvp_layer* layers = nullptr;
  size_t n = 0, stride = 0;
  kvplug_cache_params params{};
};

TEST_F(MadeFirst, CapacityComesFromTheParametersOrTheKey) {
  kvp_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  client::call(kvplug_cache_lengths, make({{"cache_implementation", "static"}}, 20).get(), 0, int64_t{1}, &lengths);
  EXPECT_EQ(lengths.max, 20);
  const json with_key{{"cache_implementation", "static"}, {"max_cache_len", 40}};
  client::call(kvplug_cache_lengths, make(with_key, -1).get(), 0, int64_t{1}, &lengths);
  EXPECT_EQ(lengths.max, 40);
  const Failed failed = failure_of([&] { make({{"cache_implementation", "static"}}, -1); });
  EXPECT_EQ(failed.status, KVP_INVALID_ARGUMENT);
  EXPECT_NE(failed.text.find("\"static\" needs its capacity"), std::string::npos) << failed.text;
  EXPECT_NE(failed.text.find("generation.max_cache_len"), std::string::npos) << failed.text;
}

TEST_F(MadeFirst, TooSmallForTheRunIsToldBeforeAnythingIsComputed) {
  const auto cache = make({{"cache_implementation", "static"}}, 16);
  const json plain = run_document(model_folder("llama"), {{"max_new_tokens", 24}});
  const auto config = make_config(host.get(), plain);
  {
    const auto session =
        client::make<client::Session>(kvplug_session_create_with_cache, model.get(), config.get(), cache.get());
    append_rows(session.get(), {kIds});
    const Failed failed = failure_of([&] { play(session.get(), 1); });
    EXPECT_EQ(failed.status, KVP_CAPACITY);
    EXPECT_NE(failed.text.find("16 tokens a row"), std::string::npos) << failed.text;
    EXPECT_NE(failed.text.find("prompt 8 + max_new_tokens 24 - 1 = 31"), std::string::npos) << failed.text;
    EXPECT_EQ(json_from(kvplug_session_stats, session.get())["tokens"], 0);
    const auto less = make_config(host.get(), run_document(model_folder("llama"), {{"max_new_tokens", 9}}));
    EXPECT_EQ(choices(play(session.get(), 1, less.get()).rows[0]), Ids(kAnswer.begin(), kAnswer.begin() + 9));
  }
}

TEST_F(MadeFirst, LengthsOfAbsurdQueriesAreRefused) {
  const auto cache = make({{"cache_implementation", "dynamic"}}, -1);
  kvp_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  for (const int64_t query : {int64_t{-1}, (int64_t{1} << 40) + 1, INT64_MAX}) {
    EXPECT_EQ(kvplug_cache_lengths(cache.get(), 0, query, &lengths, nullptr), KVP_INVALID_ARGUMENT) << query;
  }
  const kvp_call call{sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};
  EXPECT_EQ(kvplug_cache_begin_step(cache.get(), &call, nullptr), KVP_OK);
  EXPECT_EQ(kvplug_cache_end_step(cache.get(), &call, nullptr), KVP_OK);
}

}  // namespace
}  // namespace kvplug::testing
