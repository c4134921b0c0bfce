// SPDX-License-Identifier: Apache-2.0
// flow/: one cache over several calls. What counts is `no_cache`, the same continuation without any cache.
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

client::Session new_session(Family& family, const Ids& ids) {
  auto session = make_session(family.host(), family.model(), family.document(json::object()));
  append_rows(session.get(), {ids});
  return session;
}

// Goes on in `session` and holds it against the record: the ids, and the logits of the first step.
void check_continuation(Family& family, kvplug_session* session, const json& record, size_t prompt) {
  const Ids want = tail(record["sequences"], prompt);
  const Play got = generate(family, session, want);
  EXPECT_EQ(choices(got.rows[0]), want);
  const double atol = family.file().by_id(family.name() + "/forward/single")["atol"];
  EXPECT_LE(distance(got.rows[0].at(0).logits, family.file().tensors.at(record["first_logits"]).floats()), atol);
}

void check_chat(Family& family, const json& c) {
  const Ids turn1 = first_row(c["turn1"]), turn2 = first_row(c["turn2"]);
  const auto session = new_session(family, turn1);
  const Ids answer = tail(c["out1"], turn1.size());
  EXPECT_EQ(choices(generate(family, session.get(), answer).rows[0]), answer);
  EXPECT_EQ(cached_tokens(session.get()), c["length_between"]);
  EXPECT_EQ(set_ids(session.get(), 0, turn2), c["length_between"]);
  check_continuation(family, session.get(), c["no_cache"], turn2.size());
  EXPECT_EQ(cached_tokens(session.get()), c["cache"]["seq_length"]);
}

void check_prefix(Family& family, const json& c) {
  const auto base = new_session(family, first_row(c["prefix"]));
  generate(family, base.get(), {0});
  EXPECT_EQ(cached_tokens(base.get()), c["prefix_length"]);
  for (const json& run : c["runs"]) {
    const auto copy = client::make<client::Session>(kvplug_session_clone, base.get());
    const Ids ids = first_row(run["input_ids"]);
    EXPECT_EQ(set_ids(copy.get(), 0, ids), c["prefix_length"]);
    check_continuation(family, copy.get(), run["no_cache"], ids.size());
    EXPECT_EQ(cached_tokens(base.get()), c["prefix_length"]) << "the original has changed";
  }
}

void check_crop(Family& family, const json& c) {
  const Ids prompt = first_row(c["input_ids"]);
  const auto session = new_session(family, prompt);
  const Ids answer = tail(c["sequences"], prompt.size());
  EXPECT_EQ(choices(generate(family, session.get(), answer).rows[0]), answer);
  ASSERT_EQ(cached_tokens(session.get()), c["before"]["seq_length"]);
  // The record counts cached tokens, negative = remove; a session counts ids, one of which is not cached yet.
  const auto crop = c["crop"].get<int64_t>();
  const int64_t n_remove = crop > 0 ? -crop : crop == 0 ? 0 : -crop + 1;
  const kvplug_status status = kvplug_session_crop(session.get(), &n_remove, 1, nullptr);
  if (c.contains("crop_error")) {
    EXPECT_EQ(status, KVP_INVALID_ARGUMENT);
    EXPECT_EQ(cached_tokens(session.get()), c["before"]["seq_length"]);
    return;
  }
  ASSERT_EQ(status, KVP_OK);
  EXPECT_EQ(cached_tokens(session.get()), c["after"]["seq_length"]);
  if (!c.contains("input_ids2")) return;
  const Ids next = first_row(c["input_ids2"]);
  EXPECT_EQ(set_ids(session.get(), 0, next), c["after"]["seq_length"]);
  check_continuation(family, session.get(), c["no_cache"], next.size());
}

}  // namespace

void add_flow_case(Tally& tally, const std::shared_ptr<Family>& family, const json& c,
                   const std::set<std::string>& kinds) {
  const std::string id = c["id"], name = id.substr(id.find('/') + 1);
  const std::string flow = name.substr(5, name.find('/', 5) - 5);
  const std::string rest = name.substr(5 + flow.size() + 1), kind = rest.substr(0, rest.find('/'));
  const auto add = [&](void (*check)(Family&, const json&)) {
    tally.run(family->name(), name, [family, &c, check] { check(*family, c); });
  };
  if (const std::string why = missing_kind(kind, kinds); !why.empty()) {
    tally.skip(family->name(), why);
  } else if (!kind.starts_with("dynamic")) {
    tally.skip(family->name(), "no flow is written for kind " + kind);
  } else if (flow == "chat") {
    add(check_chat);
  } else if (flow == "prefix") {
    add(check_prefix);
  } else if (flow == "crop") {
    add(check_crop);
  } else {
    tally.skip(family->name(), "a session has no call for flow/" + flow + "; kvplug_cache_gather has its own tests");
  }
}

}  // namespace kvplug::testing
