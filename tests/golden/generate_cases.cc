// SPDX-License-Identifier: Apache-2.0
// generate/: greedy decoding, stopping, sampling, and logits of every position.
//
// The recorded ids are always fed, after a look at our own choice. Where the record is token_exact the two are equal at
// every step; elsewhere (half precision and packed K/V, where another order of summation may change a close decision) a
// different choice must be one that the tolerance explains. Logits are compared at every recorded step.
#include <limits>

#include "golden/golden.h"

namespace kvplug::testing {
namespace {

// The ids of a row without its padding.
std::vector<Ids> prompts_of(const json& c) {
  std::vector<Ids> out;
  for (size_t b = 0; b < c["input_ids"].size(); ++b) {
    Ids row;
    for (size_t i = 0; i < c["input_ids"][b].size(); ++i) {
      if (c["attention_mask"][b][i] == 1) row.push_back(c["input_ids"][b][i]);
    }
    out.push_back(std::move(row));
  }
  return out;
}

std::set<int32_t> eos_of(const json& generate) {
  const json& eos = generate["eos_token_id"];
  if (eos.is_null()) return {};
  return eos.is_array() ? eos.get<std::set<int32_t>>() : std::set<int32_t>{eos.get<int32_t>()};
}

// The recorded new ids of each row, without the padding behind its end.
std::vector<Ids> recorded_ids(const json& c, const std::set<int32_t>& eos) {
  std::vector<Ids> out;
  const size_t prompt = c["input_ids"][0].size();
  for (const json& sequence : c["sequences"]) {
    Ids row;
    for (size_t i = prompt; i < sequence.size(); ++i) {
      row.push_back(sequence[i]);
      if (eos.contains(row.back())) break;
    }
    out.push_back(std::move(row));
  }
  return out;
}

// The first step of a record that is not compared by its logits. fp8: they are NaN, as a key beyond the scale of the
// first tokens became NaN, and what attention makes of such keys is not meant here. The two of hqq: the reference does
// not agree with itself. What is packed again lies on the grid of its old codes. Where a group's least and greatest
// value do as well, with old codes 0 and 6, the value between, old code 3, goes to half of the levels, 7.5 or 3.5: a
// tie, and W*s + z in float32 comes out on it or beside it by how its inputs were rounded. hqq4_k0v1: keys of layer 0,
// step 4; hqq3_a0: keys of layer 1, step 20. One code further, the solver takes the group's zero by 1/8 or 0.4
// elsewhere, and logits differ by up to 0.22 and 0.18. The reference on this checkpoint with its hidden units in a
// hundred other orders (the same function) gives the record 37 and 34 times, ours 34 and 66 times, neither 29 and 0
// times, as far as atol tells; of hqq3_a0 it gives ours with ATEN_CPU_CAPABILITY=avx2 too, and the record with avx512.
size_t compared_steps(const json& c) {
  if (c.contains("nan_steps")) return c["nan_steps"][0];
  if (c["id"] == "llama/quantized_hqq4_k0v1/single/greedy") return 5;
  if (c["id"] == "llama/quantized_hqq3_a0/single/greedy") return 21;
  return std::numeric_limits<size_t>::max();
}

// Logits at the steps whose whole vectors were recorded, [steps, batch, vocab].
void compare_logits(const GoldenFile& file, const json& record, const Play& got, double atol) {
  const GoldenTensor& tensor = file.tensors.at(record["logits"]["tensor"]);
  const std::vector<float> want = tensor.floats();
  const auto steps = record["logits"]["steps"].get<std::vector<size_t>>();
  const auto batch = static_cast<size_t>(tensor.shape[1]), vocab = static_cast<size_t>(tensor.shape[2]);
  ASSERT_EQ(batch, got.rows.size());
  for (size_t i = 0; i < steps.size() && steps[i] < compared_steps(record); ++i) {
    for (size_t b = 0; b < batch; ++b) {
      if (steps[i] >= got.rows[b].size()) continue;  // the row had ended
      EXPECT_LE(distance(got.rows[b][steps[i]].logits, vocab_row(want, i * batch + b, vocab)), atol)
          << "logits of step " << steps[i] << ", row " << b;
    }
  }
}

// The four largest logits, recorded at every step.
void compare_top4(const json& record, const Play& got, double atol) {
  for (size_t t = 0; t < record["top4_ids"].size(); ++t) {
    for (size_t b = 0; b < got.rows.size(); ++b) {
      if (t >= got.rows[b].size()) continue;
      for (size_t k = 0; k < 4; ++k) {
        const auto id = record["top4_ids"][t][b][k].get<size_t>();
        EXPECT_NEAR(got.rows[b][t].logits.at(id), record["top4_logits"][t][b][k].get<double>(), atol)
            << "logit " << id << " of step " << t << ", row " << b;
      }
    }
  }
}

void check_greedy(Family& family, const json& c) {
  const auto eos = eos_of(c["generate"]);
  const std::vector<Ids> prompts = prompts_of(c), ids = recorded_ids(c, eos);
  const double atol = c["atol"];
  const auto session = make_session(family.host(), family.model(), family.document(c["generate"]));
  append_rows(session.get(), prompts);
  const Play got = play(session.get(), prompts.size(), nullptr, ids);

  for (size_t b = 0; b < ids.size(); ++b) {
    ASSERT_EQ(got.rows[b].size(), ids[b].size()) << "row " << b;
    EXPECT_EQ(got.finish[b], eos.contains(ids[b].back()) ? KVPLUG_FINISH_EOS : KVPLUG_FINISH_LENGTH) << "row " << b;
    if (c["token_exact"] == true) {
      EXPECT_EQ(choices(got.rows[b]), ids[b]) << "row " << b;
      continue;
    }
    for (size_t t = 0; t < std::min(ids[b].size(), compared_steps(c)); ++t) {
      const Step& step = got.rows[b][t];
      const double gap = step.logits[static_cast<size_t>(step.choice)] - step.logits[static_cast<size_t>(ids[b][t])];
      EXPECT_LE(gap, 2 * atol) << "row " << b << ", step " << t << ": " << step.choice << " instead of " << ids[b][t];
    }
  }
  // A case that repeats another one has the logits of that one.
  const json* record = &c;
  if (!c.contains("logits") && c.contains("same_as") && c["tokens_equal_base"] == true) {
    record = &family.file().by_id(c["same_as"]);
  }
  if (record->contains("logits")) compare_logits(family.file(), *record, got, atol);
  if (record->contains("top4_ids")) compare_top4(*record, got, atol);
  // The newest token is never fed. Rows of one length, so that no padding is counted.
  const json stats = json_from(kvplug_session_stats, session.get());
  if (prompts.size() == 1 && c.contains("cache") && c["cache"].is_object()) {
    EXPECT_EQ(stats["tokens"], c["cache"]["seq_length"]);
  }
  if (c["generate"].value("use_cache", true) == false) {
    EXPECT_EQ(stats["tokens"], 0);
  }
}

void check_sample(Family& family, const json& c) {
  const std::vector<Ids> prompts = prompts_of(c), ids = recorded_ids(c, {});
  const auto session = make_session(family.host(), family.model(), family.document(c["generate"]));
  append_rows(session.get(), prompts);
  const Play got = play(session.get(), prompts.size(), nullptr, ids);
  const GoldenTensor& tensor = family.file().tensors.at(c["logits"]);
  const std::vector<float> logits = tensor.floats(), scores = family.file().tensors.at(c["scores"]).floats();
  const auto batch = static_cast<size_t>(tensor.shape[1]), vocab = static_cast<size_t>(tensor.shape[2]);
  ASSERT_EQ(batch, prompts.size());
  for (size_t b = 0; b < batch; ++b) {
    ASSERT_EQ(got.rows[b].size(), ids[b].size());
    for (size_t t = 0; t < ids[b].size(); ++t) {
      const Step& step = got.rows[b][t];
      EXPECT_LE(distance(step.logits, vocab_row(logits, t * batch + b, vocab)), c["atol"].get<double>())
          << "logits of step " << t;
      EXPECT_LE(distance(step.scores, vocab_row(scores, t * batch + b, vocab)), c["atol"].get<double>())
          << "scores of step " << t << " (infinite: another set of tokens was filtered out)";
      EXPECT_FALSE(std::isinf(step.scores[static_cast<size_t>(step.choice)])) << "a filtered token was drawn";
    }
  }
}

// The logits of every position: those of the last one, for prompts of growing length.
void check_forward(Family& family, const json& c) {
  const Ids ids = prompts_of(c)[0];
  const GoldenTensor& tensor = family.file().tensors.at(c["logits"]);
  const std::vector<float> want = tensor.floats();
  for (size_t n = 1; n <= ids.size(); ++n) {
    const auto session = make_session(family.host(), family.model(),
                                      family.document({{"max_new_tokens", 1}, {"use_cache", n % 2 == 0}}));
    append_rows(session.get(), {Ids(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n))});
    const Play got = play(session.get(), 1);
    EXPECT_LE(distance(got.rows[0].at(0).logits, vocab_row(want, n - 1, static_cast<size_t>(tensor.shape[2]))),
              c["atol"].get<double>())
        << "position " << n - 1;
  }
}

// A quantized cache that does as the reference does.
json strict(json generate) {
  generate["cache_config"]["hf_compat"] = "strict";
  return generate;
}

void check_quantized_refused(Family& family, const json& c) {
  const std::string message = c["error"]["message"];
  const bool layers = message.find("layer types") != std::string::npos;
  const std::vector<Ids> prompts = prompts_of(c);
  try {
    const auto session = make_session(family.host(), family.model(), family.document(strict(c["generate"])));
    append_rows(session.get(), prompts);
    play(session.get(), prompts.size());
    ADD_FAILURE() << "was not refused; the reference: " << message;
  } catch (const client::Failure& failure) {
    EXPECT_EQ(failure.status(), layers ? KVP_UNSUPPORTED : KVP_INVALID_ARGUMENT) << failure.what();
    const char* words = layers ? "full_attention layers alone" : "option 'q_group_size' is 64";
    EXPECT_NE(std::string(failure.what()).find(words), std::string::npos) << failure.what();
  }
}

// The reference loses the codes of 3 bits on axis 1. Here they are kept: nothing to compare with, but it runs.
void check_three_bits(Family& family, const json& c) {
  const std::vector<Ids> prompts = prompts_of(c);
  const auto session = make_session(family.host(), family.model(), family.document(strict(c["generate"])));
  append_rows(session.get(), prompts);
  const Play got = play(session.get(), prompts.size());
  for (const auto& row : got.rows) {
    ASSERT_EQ(row.size(), c["generate"]["max_new_tokens"].get<size_t>());
    for (const Step& step : row) {
      for (const float logit : step.logits) ASSERT_TRUE(std::isfinite(logit));
    }
  }
}

void add_quantized_case(Tally& tally, const std::shared_ptr<Family>& family, const std::string& name, const json& c) {
  const auto add = [&](void (*check)(Family&, const json&), const json& record) {
    tally.run(family->name(), name, [family, record, check] { check(*family, record); });
  };
  if (c.contains("patched")) {
    tally.skip(family->name(),
               "fp8 with a scale of the first tokens that saturates: neither the reference nor a mode here");
  } else if (name.starts_with("quantized_hqq3_a1/")) {
    add(check_three_bits, c);
  } else if (c.contains("error")) {
    add(check_quantized_refused, c);
  } else {
    json record = c;
    record["generate"] = strict(c["generate"]);
    add(check_greedy, record);
  }
}

}  // namespace

std::string missing_kind(const std::string& label, const std::set<std::string>& kinds) {
  for (const char* kind : {"static", "offloaded_static", "offloaded"}) {
    if (label.starts_with(kind) && !kinds.contains(kind)) return std::string("kind ") + kind + " is not provided";
  }
  return "";
}

void add_generate_cases(Tally& tally, const std::shared_ptr<Family>& family, const std::set<std::string>& kinds) {
  for (const json& c : family->file().cases) {
    const std::string id = c["id"], name = id.substr(id.find('/') + 1), label = name.substr(0, name.find('/'));
    const auto add = [&](void (*check)(Family&, const json&)) {
      tally.run(family->name(), name, [family, &c, check] { check(*family, c); });
    };
    if (label == "flow") {
      add_flow_case(tally, family, c, kinds);
    } else if (label == "forward") {
      add(check_forward);
    } else if (c["generate"].contains("num_beams")) {
      tally.skip(family->name(), "beam search is not provided");
    } else if (label.starts_with("quantized")) {
      add_quantized_case(tally, family, name, c);
    } else if (const std::string why = missing_kind(c["generate"].value("cache_implementation", label), kinds);
               !why.empty()) {
      tally.skip(family->name(), why);
    } else if (c.contains("error")) {
      // What the reference refuses of a lossless kind works here, and is what the growing cache gives.
      const json& dynamic = family->file().by_id(family->name() + "/dynamic" + name.substr(label.size()));
      json served = dynamic;
      served["generate"] = c["generate"];
      served.erase("cache");
      tally.run(family->name(), name, [family, served] { check_greedy(*family, served); });
    } else if (c.contains("scores")) {
      add(check_sample);
    } else {
      add(check_greedy);
    }
  }
}

}  // namespace kvplug::testing
