// SPDX-License-Identifier: Apache-2.0
#include "report/bench.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <random>

#include "report/bandwidth.h"
#include "report/lane.h"
#include "report/machine.h"
#include "report/plan.h"
#include "report/statistics.h"

namespace kvplug::report {
namespace {

constexpr int64_t kFillChunk = 512;

// Of this process, now.
uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  return in >> all >> resident ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

// A row of the answer: one cache, one shape.
struct Cell {
  size_t cache = 0;
  int64_t batch = 1, depth = 0, prompt = 0, steps = 0;  // prompt or steps is 0
  std::vector<double> seconds = {};
  std::vector<int32_t> tokens = {};  // what came out; the same every time
  uint64_t used = 0, reserved = 0, resident = 0, touched = 0;
  std::optional<Error> error = {};
};

class Bench {
 public:
  Bench(const MeasureContext& context, const config::Run& run)
      : context_(context), run_(run), model_(context.executor->description()) {
    const config::BenchSection& b = run.bench;
    const auto longest = [&](const std::vector<int64_t>& of) { return *std::max_element(of.begin(), of.end()); };
    const int64_t most = longest(b.depth) + std::max(longest(b.prompt_tokens), longest(b.new_tokens));
    if (most > model_.max_position_embeddings) {
      throw Error(Code::kConfig,
                  "depth and tokens reach " + std::to_string(most) + ", the model ends at " +
                      std::to_string(model_.max_position_embeddings),
                  "take a smaller depth, prompt_tokens or new_tokens", "bench.depth");
    }
    if (longest(b.prompt_tokens) == 0 && longest(b.new_tokens) == 0)
      throw Error(Code::kConfig, "nothing to measure: prompt_tokens and new_tokens are both 0", {}, "bench");
    tests_ = 0;
    for (const auto* list : {&b.prompt_tokens, &b.new_tokens})
      tests_ += static_cast<uint64_t>(std::count_if(list->begin(), list->end(), [](int64_t n) { return n > 0; }));
    total_ = tests_ * b.cache.size() * b.depth.size() * b.batch_size.size() *
             static_cast<uint64_t>(b.repetitions + b.warmup);
  }

  nlohmann::json run() {
    tell(context_, "reading memory", 0, total_);
    const int threads = threads_used();
    bandwidth_ = read_bandwidth(threads);
    for (const int64_t batch : run_.bench.batch_size)
      for (const int64_t depth : run_.bench.depth) shapes_at(batch, depth);
    // The machine may have been busy then, or now.
    bandwidth_ = std::max(bandwidth_, read_bandwidth(threads));
    nlohmann::json out = document_head(run_, *context_.executor);
    out["machine"] = describe_machine();
    out["machine"]["read_bytes_per_s"] = bandwidth_;
    out["machine"]["read_threads"] = threads;
    out["weight_bytes"] = context_.executor->weight_bytes();
    out["runs"] = nlohmann::json::array();
    for (const Cell& cell : cells_) out["runs"].push_back(row(cell));
    return out;
  }

 private:
  int threads_used() const {
    const int asked = context_.executor->options().threads;
    return asked > 0 ? asked : describe_machine()["physical_cores"].get<int>();
  }

  // The same tokens every time and for every cache.
  std::vector<int32_t> text(int64_t count) const {
    std::mt19937 random(static_cast<uint32_t>(run_.run.seed.value_or(0)));
    std::vector<int32_t> out(static_cast<size_t>(count));
    for (int32_t& id : out) id = static_cast<int32_t>(random() % static_cast<uint64_t>(model_.vocab_size));
    return out;
  }

  // All caches at one batch and depth, in turns: what else the machine does meets all of them alike.
  void shapes_at(int64_t batch, int64_t depth) {
    const config::BenchSection& b = run_.bench;
    const size_t first = cells_.size();
    int64_t longest = 0;
    for (size_t c = 0; c < b.cache.size(); ++c) {
      for (const int64_t n : b.prompt_tokens)
        if (n > 0) add({c, batch, depth, n, 0}, longest);
      for (const int64_t n : b.new_tokens)
        if (n > 0) add({c, batch, depth, 0, n}, longest);
    }
    int64_t query = std::min(depth, kFillChunk);
    for (size_t i = first; i < cells_.size(); ++i) query = std::max({query, cells_[i].prompt, int64_t{1}});
    std::vector<std::unique_ptr<Lane>> lanes(b.cache.size());
    std::vector<bool> kept(b.cache.size(), false);
    for (size_t c = 0; c < lanes.size(); ++c) {
      const std::optional<Error> why = attempt([&] {
        lanes[c] = std::make_unique<Lane>(*context_.registry, *context_.executor, choice_of(b.cache[c], run_), batch,
                                          depth + longest, query);
        if (depth == 0) return;
        tell(context_, label(cells_[first], "filling"), done_, total_);
        fill(*lanes[c], batch, depth);
        kept[c] = lanes[c]->take();
      });
      if (!why) continue;
      for (size_t i = first; i < cells_.size(); ++i)
        if (cells_[i].cache == c) cells_[i].error = why;
    }
    for (int64_t round = -b.warmup; round < b.repetitions; ++round) {
      for (size_t i = first; i < cells_.size(); ++i) {
        Cell& cell = cells_[i];
        tell(context_, label(cell, cell.prompt ? "prefill" : "decode"), done_++, total_);
        if (cell.error) continue;
        cell.error = attempt([&] {
          Lane& lane = *lanes[cell.cache];
          if (kept[cell.cache]) {
            lane.restore();
          } else {
            lane.restart();
            fill(lane, batch, depth);
          }
          measure(cell, lane, round >= 0);
        });
      }
    }
  }

  void add(Cell cell, int64_t& longest) {
    longest = std::max({longest, cell.prompt, cell.steps});
    cells_.push_back(std::move(cell));
  }

  // Cancelling is not a cell's failure.
  template <class F>
  static std::optional<Error> attempt(const F& f) {
    try {
      f();
      return std::nullopt;
    } catch (const Error& e) {
      if (e.code() == Code::kCancelled) throw;
      return e;
    }
  }

  std::string label(const Cell& cell, const std::string& what) const {
    return what + " " + run_.bench.cache[cell.cache].cache_implementation + " at depth " + std::to_string(cell.depth);
  }

  void fill(Lane& lane, int64_t batch, int64_t depth) {
    logits_.resize(static_cast<size_t>(batch * model_.vocab_size));
    const std::vector<int32_t> all = text(batch * depth);
    std::vector<int32_t> piece;
    for (int64_t at = 0; at < depth; at += kFillChunk) {
      const int64_t count = std::min(kFillChunk, depth - at);
      piece.clear();
      for (int64_t row = 0; row < batch; ++row)
        piece.insert(piece.end(), all.begin() + row * depth + at, all.begin() + row * depth + at + count);
      lane.step(piece, count, logits_.data());
    }
  }

  // The most likely token of every row.
  void choose(int64_t batch, std::vector<int32_t>& out) const {
    const auto vocab = static_cast<size_t>(model_.vocab_size);
    out.clear();
    for (size_t row = 0; row < static_cast<size_t>(batch); ++row)
      out.push_back(argmax(std::span(logits_).subspan(row * vocab, vocab)));
  }

  void measure(Cell& cell, Lane& lane, bool counts) {
    logits_.resize(static_cast<size_t>(cell.batch * model_.vocab_size));
    std::vector<int32_t> next, produced, ids = text(cell.batch * std::max<int64_t>(cell.prompt, 1));
    produced.reserve(static_cast<size_t>(cell.batch * std::max<int64_t>(cell.steps, 1)));
    next.reserve(static_cast<size_t>(cell.batch));
    const uint64_t before = lane.used_bytes();
    const auto start = std::chrono::steady_clock::now();
    if (cell.prompt > 0) {
      lane.step(ids, cell.prompt, logits_.data());
      choose(cell.batch, next);
      produced = next;
    }
    for (int64_t i = 0; i < cell.steps; ++i) {
      lane.step(i == 0 ? ids : next, 1, logits_.data());
      choose(cell.batch, next);
      produced.insert(produced.end(), next.begin(), next.end());
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (cell.tokens.empty()) cell.tokens = produced;
    if (cell.tokens != produced) {
      throw Error(Code::kInternal, "a repetition gave other tokens than the first one",
                  "the cache or a kernel depends on something it must not; the times say nothing");
    }
    if (!counts) return;
    cell.seconds.push_back(seconds);
    cell.used = lane.used_bytes();
    cell.reserved = lane.reserved_bytes();
    cell.resident = resident_bytes();
    if (cell.steps > 0) cell.touched = weights_read() + (before + cell.used) / 2;
  }

  // Of the embeddings a step reads its rows alone, unless they are the head as well.
  uint64_t weights_read() const {
    const uint64_t all = context_.executor->weight_bytes();
    if (model_.tie_word_embeddings) return all;
    const auto table =
        static_cast<uint64_t>(model_.vocab_size * model_.hidden_size) * (context_.executor->options().dtype.bits / 8);
    return all > table ? all - table : all;
  }

  nlohmann::json row(const Cell& cell) const {
    nlohmann::json out = cache_json(run_.bench.cache[cell.cache]);
    out["dtype"] = dtype_word(context_.executor->options().dtype);
    out["threads"] = threads_used();
    out["batch"] = cell.batch;
    out["depth"] = cell.depth;
    out["prompt_tokens"] = cell.prompt;
    out["new_tokens"] = cell.steps;
    if (cell.error) {
      out["error"] = error_json(*cell.error);
      return out;
    }
    std::vector<double> rates;
    const auto tokens = static_cast<double>(cell.batch * (cell.prompt + cell.steps));
    for (const double s : cell.seconds) rates.push_back(tokens / s);
    std::sort(rates.begin(), rates.end());
    const size_t n = rates.size();
    const double median = n % 2 ? rates[n / 2] : (rates[n / 2 - 1] + rates[n / 2]) / 2;
    out["tokens_per_s"] = {{"median", median}, {"min", rates.front()}, {"max", rates.back()}, {"n", n}};
    out["kv_bytes"] = cell.used;
    out["kv_reserved_bytes"] = cell.reserved;
    out["rss_bytes"] = cell.resident;
    out["step_bytes"] = nullptr;
    out["roofline_tokens_per_s"] = nullptr;
    out["mbu"] = nullptr;
    if (cell.steps > 0) {
      const double roof = static_cast<double>(cell.batch) * bandwidth_ / static_cast<double>(cell.touched);
      out["step_bytes"] = cell.touched;
      out["roofline_tokens_per_s"] = roof;
      out["mbu"] = median / roof;
    }
    return out;
  }

  const MeasureContext& context_;
  const config::Run& run_;
  const model::Description& model_;
  uint64_t tests_ = 0, total_ = 0, done_ = 0;
  double bandwidth_ = 0;
  std::vector<Cell> cells_;
  std::vector<float> logits_;
};

}  // namespace

nlohmann::json bench_document(const MeasureContext& context, const config::Run& run) {
  return Bench(context, run).run();
}

}  // namespace kvplug::report
