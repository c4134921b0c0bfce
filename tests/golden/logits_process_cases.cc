// SPDX-License-Identifier: Apache-2.0
// logits_process: each processor and warper on given logits, by way of a checkpoint that always answers these logits
// and the [generation] keys that ask for the processor.
#include <bit>
#include <cstring>

#include "golden/golden.h"
#include "support/tiny_checkpoint.h"

namespace kvplug::testing {
namespace {

// The given logits [rows][vocab] and ids [rows][tokens], and one checkpoint a row.
class Given {
 public:
  explicit Given(kvplug_host* host) : host_(host), file_("logits_process") {
    const GoldenTensor &logits = file_.tensors.at("logits"), &ids = file_.tensors.at("input_ids");
    rows_ = static_cast<size_t>(logits.shape[0]);
    vocab_ = static_cast<size_t>(logits.shape[1]);
    values_ = logits.floats();
    const auto tokens = static_cast<size_t>(ids.shape[1]);
    for (size_t r = 0; r < rows_; ++r) {
      Ids row;
      for (size_t i = 0; i < tokens; ++i) {
        int64_t id = 0;
        std::memcpy(&id, ids.bytes.data() + (r * tokens + i) * sizeof id, sizeof id);
        row.push_back(static_cast<int32_t>(id));
      }
      ids_.push_back(std::move(row));
    }
  }
  kvplug_host* host() const { return host_; }
  const GoldenFile& file() const { return file_; }
  size_t rows() const { return rows_; }
  const Ids& ids(size_t row) const { return ids_[row]; }
  std::span<const float> logits(size_t row) const { return vocab_row(values_, row, vocab_); }
  std::string folder(size_t row) const { return folder_ / std::to_string(row); }
  kvplug_model* model(size_t row) {
    if (models_.empty()) {
      for (size_t r = 0; r < rows_; ++r) {
        std::filesystem::create_directory(folder(r));
        write_constant_model(folder(r), logits(r));
        models_.push_back(load_model(host_, run_document(folder(r), {})));
      }
    }
    return models_[row].get();
  }

 private:
  kvplug_host* host_;
  GoldenFile file_;
  size_t rows_ = 0, vocab_ = 0;
  std::vector<float> values_;
  std::vector<Ids> ids_;
  TempFolder folder_;
  std::vector<client::Model> models_;
};

// What of `keys` is asked of generate() by one processor, and the prompt it speaks of (0 = all ids).
struct Asked {
  json keys = json::object();
  size_t prompt = 0;
};

void ask(const std::string& name, const json& args, Asked& out) {
  static const std::map<std::string, std::pair<const char*, const char*>> kOneValue = {
      {"TemperatureLogitsWarper", {"temperature", "temperature"}},
      {"TopKLogitsWarper", {"top_k", "top_k"}},
      {"TopPLogitsWarper", {"top_p", "top_p"}},
      {"MinPLogitsWarper", {"min_p", "min_p"}},
      {"TypicalLogitsWarper", {"mass", "typical_p"}},
      {"EpsilonLogitsWarper", {"epsilon", "epsilon_cutoff"}},
      {"EtaLogitsWarper", {"epsilon", "eta_cutoff"}},
      {"RepetitionPenaltyLogitsProcessor", {"penalty", "repetition_penalty"}},
      {"NoRepeatNGramLogitsProcessor", {"ngram_size", "no_repeat_ngram_size"}},
      {"SuppressTokensLogitsProcessor", {"suppress_tokens", "suppress_tokens"}},
      {"SuppressTokensAtBeginLogitsProcessor", {"begin_suppress_tokens", "begin_suppress_tokens"}},
      {"MinLengthLogitsProcessor", {"min_length", "min_length"}},
      {"MinNewTokensLengthLogitsProcessor", {"min_new_tokens", "min_new_tokens"}},
      {"ForcedEOSTokenLogitsProcessor", {"eos_token_id", "forced_eos_token_id"}},
      {"ForcedBOSTokenLogitsProcessor", {"bos_token_id", "forced_bos_token_id"}},
      {"NoBadWordsLogitsProcessor", {"bad_words_ids", "bad_words_ids"}},
  };
  if (name == "InfNanRemoveLogitsProcessor") {
    out.keys["remove_invalid_values"] = true;
  } else {
    const auto& [argument, key] = kOneValue.at(name);
    out.keys[key] = args.at(argument);
  }
  if (name.ends_with("Warper")) out.keys["do_sample"] = true;
  if (args.contains("eos_token_id") && name != "ForcedEOSTokenLogitsProcessor") {
    out.keys["eos_token_id"] = args["eos_token_id"];
  }
  if (args.contains("max_length")) out.keys["max_length"] = args["max_length"];
  out.prompt = args.value("begin_index", args.value("prompt_length_to_skip", size_t{0}));
}

Asked asked_by(const json& c) {
  Asked out;
  if (c.contains("chain")) {
    for (const json& link : c["chain"]) ask(link[0], link[1], out);
  } else {
    ask(c["class"], c["args"], out);
  }
  if (!out.keys.contains("top_k")) out.keys["top_k"] = 0;  // else the default of 50 would filter too
  return out;
}

void check_scores(Given& given, const json& c) {
  const Asked asked = asked_by(c);
  const std::vector<float> want = given.file().tensors.at(c["out"]).floats();
  for (size_t r = 0; r < given.rows(); ++r) {
    // The prompt, then ids that are forced: the processor is met with all ids before it.
    const Ids& ids = given.ids(r);
    const size_t prompt = asked.prompt == 0 ? ids.size() : asked.prompt;
    json keys = asked.keys;
    if (!keys.contains("max_length")) keys["max_new_tokens"] = ids.size() - prompt + 1;
    json document = run_document(given.folder(r), keys);
    document["output"] = {{"include", {"logprobs"}}};
    const auto session = make_session(given.host(), given.model(r), document);
    append_rows(session.get(), {Ids(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt))});
    const Play got =
        play(session.get(), 1, nullptr, {Ids(ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end())});
    ASSERT_EQ(got.rows[0].size(), ids.size() - prompt + 1);
    const Step& step = got.rows[0].back();
    ASSERT_EQ(distance(step.logits, given.logits(r)), 0) << "the checkpoint does not answer the given logits";
    const auto expected = vocab_row(want, r, step.scores.size());
    EXPECT_LE(distance(step.scores, expected), c["atol"].get<double>())
        << "row " << r << " (infinite: another set of tokens was filtered out)";
    if (c.contains("kept")) {
      EXPECT_EQ(std::count_if(step.scores.begin(), step.scores.end(), [](float s) { return !std::isinf(s); }),
                c["kept"][r].get<int64_t>())
          << "row " << r;
    }
    if (c.contains("probabilities")) {
      const std::vector<float> probabilities = given.file().tensors.at(c["probabilities"]).floats();
      EXPECT_NEAR(std::exp(step.logprob),
                  vocab_row(probabilities, r, step.scores.size())[static_cast<size_t>(step.choice)],
                  c["atol"].get<double>());
    }
  }
}

void check_refused(Given& given, const json& c) {
  const Asked asked = asked_by(c);
  try {
    make_session(given.host(), given.model(0), run_document(given.folder(0), asked.keys));
    ADD_FAILURE() << asked.keys.dump() << " was accepted; the reference says: " << c["error"]["message"];
  } catch (const client::Failure& failure) {
    EXPECT_EQ(failure.status(), KVPLUG_E_CONFIG) << failure.text();
  }
}

}  // namespace

void add_logits_process_cases(Tally& tally, kvplug_host* host) {
  const std::string group = "logits_process";
  const auto given = std::make_shared<Given>(host);
  for (const json& c : given->file().cases) {
    const std::string id = c["id"];
    if (c.contains("args") && c["args"].contains("min_tokens_to_keep")) {
      tally.skip(group, "min_tokens_to_keep is no key of a run: it is 1 without beams");
    } else if (id == "bad/top_k_0" || id == "bad/ngram_0") {
      tally.skip(group, "0 switches the filter off in generate(), which never makes the processor the case is about");
    } else {
      const auto check = c.contains("error") ? check_refused : check_scores;
      tally.run(group, id, [given, &c, check] { check(*given, c); });
    }
  }
}

}  // namespace kvplug::testing
