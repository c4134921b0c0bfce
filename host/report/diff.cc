// SPDX-License-Identifier: Apache-2.0
#include "report/diff.h"

#include <algorithm>
#include <optional>

#include "report/lane.h"
#include "report/statistics.h"

namespace kvplug::report {
namespace {

constexpr int64_t kChunk = 128;
// A layer drifts when it changes by more than this many times the noise floor of that layer.
constexpr double kAboveNoise = 3;

// One cache on the way through the texts.
struct Walker {
  config::NamedCache cache;
  int64_t piece = 0;  // tokens of one forward; the chunk, but for the noise floor
  std::unique_ptr<Lane> lane;
  std::optional<Error> error;
  std::vector<float> logits;                  // [chunk, vocab]
  std::vector<std::vector<float>> attention;  // a layer: [chunk, width]
  Comparison comparison;
  LayerDrift drift;
  uint64_t used = 0, reserved = 0;
};

class Diff {
 public:
  Diff(const MeasureContext& context, const config::Run& run, std::vector<DiffText> texts)
      : context_(context),
        run_(run),
        model_(context.executor->description()),
        texts_(std::move(texts)),
        chunk_(run.generation.prefill_chunk_size.value_or(kChunk)) {
    const int64_t most = std::min(run.diff.tokens, model_.max_position_embeddings);
    for (DiffText& text : texts_) {
      if (text.ids.size() < 2) {
        throw Error(Code::kConfig,
                    "the text \"" + text.id + "\" has " + std::to_string(text.ids.size()) +
                        " tokens; a comparison needs 2, one to read and one to foretell",
                    "give a longer text", "diff.file");
      }
      for (const int32_t id : text.ids) {
        if (id >= 0 && id < model_.vocab_size) continue;
        throw Error(Code::kConfig, "id " + std::to_string(id) + " of the text \"" + text.id +
                                       "\" is not in the vocabulary (0 to " + std::to_string(model_.vocab_size - 1) +
                                       ")");
      }
      if (std::ssize(text.ids) > most) text.ids.resize(static_cast<size_t>(most));
      longest_ = std::max<int64_t>(longest_, std::ssize(text.ids));
      total_ += text.ids.size();
    }
    chunk_ = std::min(chunk_, longest_);
    walkers_.resize(2 + run.diff.candidate.size());
    for (size_t i = 0; i < walkers_.size(); ++i) {
      walkers_[i].cache = i < 2 ? run.diff.baseline : run.diff.candidate[i - 2];
      walkers_[i].piece = chunk_;
    }
    // Another size of forward sums products over other tiles: what two right answers differ by anyway.
    walkers_[1].piece = std::max<int64_t>(1, chunk_ * 3 / 8);
  }

  nlohmann::json run() {
    for (size_t t = 0; t < texts_.size(); ++t) walk(static_cast<int64_t>(t));
    return document();
  }

 private:
  Walker& baseline() { return walkers_[0]; }
  Walker& noise() { return walkers_[1]; }

  // Runs f on the walker, whose failure is its own; the baseline's ends the comparison.
  template <class F>
  void guarded(Walker& walker, const F& f) {
    if (walker.error) return;
    try {
      f();
    } catch (const Error& e) {
      if (&walker == &baseline()) throw;
      walker.error = e;
      walker.lane.reset();
    }
  }

  void walk(int64_t number) {
    const std::vector<int32_t>& ids = texts_[static_cast<size_t>(number)].ids;
    for (Walker& walker : walkers_) {
      guarded(walker, [&] {
        walker.lane.reset();  // of the text before
        walker.lane = std::make_unique<Lane>(*context_.registry, *context_.executor, choice_of(walker.cache, run_), 1,
                                             std::ssize(ids), walker.piece);
        walker.attention.resize(model_.layers.size());
        walker.lane->watch([&walker](size_t layer, const float* out, int64_t rows, int64_t width) {
          walker.attention[layer].insert(walker.attention[layer].end(), out, out + rows * width);
        });
      });
    }
    for (size_t first = 0; first < ids.size(); first += static_cast<size_t>(chunk_)) {
      tell(context_, "comparing", done_, total_);
      const size_t count = std::min(static_cast<size_t>(chunk_), ids.size() - first);
      for (Walker& walker : walkers_) guarded(walker, [&] { feed(walker, std::span(ids).subspan(first, count)); });
      compare(number, static_cast<int64_t>(first), std::span(ids).subspan(first), static_cast<int64_t>(count));
      done_ += count;
    }
    for (Walker& walker : walkers_) {
      if (walker.error) continue;
      walker.used = std::max(walker.used, walker.lane->used_bytes());
      walker.reserved = std::max(walker.reserved, walker.lane->reserved_bytes());
    }
  }

  void feed(Walker& walker, std::span<const int32_t> ids) {
    const auto vocab = static_cast<size_t>(model_.vocab_size), piece = static_cast<size_t>(walker.piece);
    walker.logits.resize(static_cast<size_t>(chunk_) * vocab);
    for (std::vector<float>& layer : walker.attention) layer.clear();
    for (size_t first = 0; first < ids.size(); first += piece) {
      const size_t count = std::min(piece, ids.size() - first);
      walker.lane->step_all(ids.subspan(first, count), static_cast<int64_t>(count),
                            walker.logits.data() + first * vocab);
    }
  }

  // rest: the text from the chunk's first token on.
  void compare(int64_t text, int64_t first, std::span<const int32_t> rest, int64_t count) {
    const auto vocab = static_cast<size_t>(model_.vocab_size);
    const auto row = [&](const Walker& walker, int64_t i) {
      return std::span(walker.logits).subspan(static_cast<size_t>(i) * vocab, vocab);
    };
    for (int64_t i = 0; i < count && i + 1 < std::ssize(rest); ++i) {
      log_softmax(row(baseline(), i), log_p_);
      for (size_t w = 1; w < walkers_.size(); ++w) {
        Walker& walker = walkers_[w];
        if (walker.error) continue;
        walker.comparison.add(text, first + i, row(baseline(), i), log_p_, row(walker, i),
                              rest[static_cast<size_t>(i) + 1]);
      }
    }
    for (size_t w = 1; w < walkers_.size(); ++w) {
      if (walkers_[w].error) continue;
      for (size_t layer = 0; layer < model_.layers.size(); ++layer)
        walkers_[w].drift.add(layer, baseline().attention[layer], walkers_[w].attention[layer]);
    }
  }

  nlohmann::json token_json(int32_t id) const {
    return {{"id", id}, {"text", context_.tokenizer ? context_.tokenizer->decode(std::vector{id}, false) : ""}};
  }

  nlohmann::json figures(const Walker& walker, const std::vector<double>* floor) const {
    nlohmann::json out = cache_json(walker.cache);
    if (walker.error) {
      out["error"] = error_json(*walker.error);
      return out;
    }
    const Comparison& c = walker.comparison;
    const std::vector<double> kl = c.sorted_kl();
    out["kl"] = {{"mean", c.mean_kl()},
                 {"median", quantile(kl, 0.5)},
                 {"p99", quantile(kl, 0.99)},
                 {"max", kl.empty() ? 0.0 : kl.back()}};
    out["top1_agreement"] = c.top1_agreement();
    out["perplexity"] = c.perplexity();
    out["ppl_ratio"] = c.perplexity() / c.baseline_perplexity();
    out["kv_bytes"] = walker.used;
    out["kv_reserved_bytes"] = walker.reserved;
    out["first_divergence"] = nullptr;
    if (const auto& at = c.first()) {
      const DiffText& text = texts_[static_cast<size_t>(at->text)];
      const auto end = text.ids.begin() + at->position + 1;
      const std::vector<int32_t> before(end - std::min<int64_t>(8, at->position + 1), end);
      out["first_divergence"] = {{"text", text.id},
                                 {"position", at->position + 1},
                                 {"after", context_.tokenizer ? context_.tokenizer->decode(before, false) : ""},
                                 {"baseline", token_json(at->baseline)},
                                 {"candidate", token_json(at->candidate)}};
    }
    const std::vector<double> layers = walker.drift.relative();
    nlohmann::json first = nullptr;
    for (size_t i = 0; i < layers.size() && first.is_null(); ++i) {
      const double noise = floor && i < floor->size() ? kAboveNoise * (*floor)[i] : 0;
      if (!(layers[i] <= noise)) first = i;  // NaN has drifted
    }
    const auto most = std::max_element(layers.begin(), layers.end());
    const bool any = most != layers.end() && *most > 0;
    out["attention_drift"] = {{"first_layer", first},
                              {"largest_layer", any ? nlohmann::json(most - layers.begin()) : nlohmann::json(nullptr)},
                              {"layers", layers}};
    return out;
  }

  // Thresholds that a candidate missed, with figure and limit.
  void judge(const nlohmann::json& row, nlohmann::json& missed) const {
    if (row.contains("error")) return;
    const auto check = [&](const char* key, double value, double limit, bool above) {
      if (limit == 0 || (above ? value <= limit : value >= limit)) return;
      missed.push_back({{"cache", row["cache"]},
                        {"cache_config", row["cache_config"]},
                        {"key", key},
                        {"value", value},
                        {"limit", limit}});
    };
    check("diff.max_mean_kl", row["kl"]["mean"], run_.diff.max_mean_kl, true);
    check("diff.min_top1_agreement", row["top1_agreement"], run_.diff.min_top1_agreement, false);
    check("diff.max_ppl_ratio", row["ppl_ratio"], run_.diff.max_ppl_ratio, true);
  }

  nlohmann::json document() {
    nlohmann::json out = document_head(run_, *context_.executor);
    const Walker& floor = noise();
    out["baseline"] = cache_json(baseline().cache);
    out["baseline"]["kv_bytes"] = baseline().used;
    out["baseline"]["kv_reserved_bytes"] = baseline().reserved;
    out["texts"] = texts_.size();
    out["tokens"] = total_;
    out["chunk"] = chunk_;
    nlohmann::json noise_row = figures(floor, nullptr);
    noise_row["route"] = "the baseline's cache, fed " + std::to_string(floor.piece) + " tokens at a time instead of " +
                         std::to_string(chunk_);
    const std::vector<double> drift = floor.error ? std::vector<double>{} : floor.drift.relative();
    nlohmann::json rows = nlohmann::json::array(), missed = nlohmann::json::array();
    out["positions"] = total_ - texts_.size();
    out["baseline"]["perplexity"] = nullptr;
    for (size_t w = 1; w < walkers_.size(); ++w) {
      if (!walkers_[w].error) out["baseline"]["perplexity"] = walkers_[w].comparison.baseline_perplexity();
      if (w == 1) continue;
      rows.push_back(figures(walkers_[w], &drift));
      judge(rows.back(), missed);
    }
    out["noise_floor"] = std::move(noise_row);
    out["candidates"] = std::move(rows);
    out["missed"] = std::move(missed);
    return out;
  }

  const MeasureContext& context_;
  const config::Run& run_;
  const model::Description& model_;
  std::vector<DiffText> texts_;
  int64_t chunk_, longest_ = 0;
  uint64_t total_ = 0, done_ = 0;
  std::vector<Walker> walkers_;  // baseline, noise floor, candidates
  std::vector<double> log_p_;
};

}  // namespace

nlohmann::json diff_document(const MeasureContext& context, const config::Run& run, std::vector<DiffText> texts) {
  return Diff(context, run, std::move(texts)).run();
}

}  // namespace kvplug::report
