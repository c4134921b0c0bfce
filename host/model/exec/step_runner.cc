// SPDX-License-Identifier: Apache-2.0
#include "model/exec/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/error.h"
#include "model/exec/errors.h"
#include "model/exec/kernels.h"
#include "model/exec/parallel.h"

namespace kvplug::model {
namespace {

// Rows of the token-wise operations: a multiple of kFixedRows, large enough for the products to reach full speed.
constexpr int64_t kTileRows = 512;
// Rows of logits at a time when all are asked for.
constexpr int64_t kLogitRows = 32;

int64_t whole_blocks(int64_t rows) { return (rows + kFixedRows - 1) / kFixedRows * kFixedRows; }

void check_shape(const ForwardInput& input, const StepShape& shape) {
  if (input.batch < 1 || input.tokens < 1 || input.batch > shape.max_batch || input.tokens > shape.max_query) {
    throw Error(Code::kInvalidArgument, "a step of " + std::to_string(input.batch) + " x " +
                                            std::to_string(input.tokens) + " tokens, prepared for at most " +
                                            std::to_string(shape.max_batch) + " x " + std::to_string(shape.max_query));
  }
}

float rounded(double value, const Kernels& kernels) {
  auto out = static_cast<float>(value);
  char typed[sizeof(float)];
  kernels.from_float(&out, typed, 1);
  kernels.to_float(typed, &out, 1);
  return out;
}

}  // namespace

StepRunner::StepRunner(std::shared_ptr<const PackedModel> model, const StepShape& shape, CacheStack* stack)
    : model_(std::move(model)),
      shape_(shape),
      type_(model_->type),
      kernels_(kernels(type_)),
      hidden_size_(model_->description.hidden_size),
      q_width_(model_->description.q_heads * model_->description.head_dim),
      kv_width_(model_->description.kv_heads * model_->description.head_dim),
      qkv_width_(q_width_ + 2 * kv_width_),
      eps_(static_cast<float>(model_->description.rms_norm_eps)),
      rms_norm_(model_->description.norm_adds_one ? kernels_.rms_norm_once : kernels_.rms_norm),
      add_rms_norm_(model_->description.norm_adds_one ? kernels_.add_rms_norm_once : kernels_.add_rms_norm),
      activate_(model_->description.hidden_act == "silu" ? kernels_.silu_mul : kernels_.gelu_mul),
      products_(*model_),
      attention_(model_->description.cache_layers(), type_,
                 {.scale = static_cast<float>(model_->description.attention_scale),
                  .softcap = static_cast<float>(model_->description.attention_softcap)},
                 shape, stack),
      embedding_scale_(rounded(model_->description.embedding_scale, kernels_)) {
  const int64_t tokens = shape.max_batch * shape.max_query, all = whole_blocks(tokens);
  tile_ = std::min(all, kTileRows);
  logit_rows_ = whole_blocks(std::max(shape.max_batch, kLogitRows));
  const int64_t half = model_->description.head_dim / 2, vocab = model_->description.vocab_size;
  int64_t width = 0;
  for (const PackedLayer& layer : model_->layers) width = std::max(width, model_->width_of(layer.down));
  const auto bytes = [&](int64_t rows, int64_t columns, size_t element) {
    return static_cast<size_t>(rows * columns) * element;
  };
  const size_t element = size_of(type_);
  struct Piece {
    void** at;
    size_t bytes;
  };
  void *positions = nullptr, *slots = nullptr, *cos = nullptr, *sin = nullptr, *temperatures = nullptr, *typed[8] = {};
  const Piece pieces[] = {
      {&typed[0], bytes(all, hidden_size_, element)},   {&typed[1], bytes(all, qkv_width_, element)},
      {&typed[2], bytes(all, q_width_, element)},       {&typed[3], bytes(tile_, hidden_size_, element)},
      {&typed[4], bytes(tile_, hidden_size_, element)}, {&typed[5], bytes(tile_, 2 * width, element)},
      {&typed[6], bytes(tile_, width, element)},        {&typed[7], bytes(logit_rows_, vocab, element)},
      {&positions, bytes(all, 1, sizeof(int64_t))},     {&slots, bytes(all, 1, sizeof(int64_t))},
      {&cos, bytes(all, half, sizeof(float))},          {&sin, bytes(all, half, sizeof(float))},
      {&temperatures, bytes(all, 1, sizeof(float))}};
  size_t total = 0;
  for (const Piece& piece : pieces) total += Arena::round(piece.bytes);
  arena_ = Arena(total);
  for (const Piece& piece : pieces) *piece.at = arena_.take(piece.bytes);
  char** const named[] = {&hidden_, &qkv_, &attended_, &normed_, &delta_, &gate_up_, &activated_, &logits_};
  for (size_t i = 0; i < 8; ++i) *named[i] = static_cast<char*>(typed[i]);
  positions_ = static_cast<int64_t*>(positions);
  slots_ = static_cast<int64_t*>(slots);
  temperatures_ = static_cast<float*>(temperatures);
  cos_ = static_cast<float*>(cos);
  sin_ = static_cast<float*>(sin);
  experts_ = std::make_unique<Experts>(*model_, products_, tile_);
  if (shape.use_cache) products_.prepare(shape.max_batch);
}

uint64_t StepRunner::scratch_bytes() const {
  return arena_.size() + attention_.scratch_bytes() + products_.scratch_bytes() + experts_->scratch_bytes();
}

void StepRunner::forward(const ForwardInput& input, CacheStack* stack, float* logits) {
  step(input, stack, Logits::kLast, logits);
}

void StepRunner::forward_all(const ForwardInput& input, CacheStack* stack, float* logits) {
  step(input, stack, Logits::kAll, logits);
}

void StepRunner::step(const ForwardInput& input, CacheStack* stack, Logits which, float* logits) {
  check_shape(input, shape_);
  translated([&] {
    use_threads(model_->options.threads);
    const kvp_call call = attention_.call_for(input, stack);
    if (stack != nullptr) stack->begin_step(call);
    try {
      write_logits(layers(input, stack, which), logits);
      if (stack != nullptr) stack->end_step(call);
    } catch (...) {
      if (stack != nullptr) stack->abort_step(call);
      throw;
    }
  });
}

int64_t StepRunner::layers(const ForwardInput& input, CacheStack* stack, Logits which) {
  const Description& d = model_->description;
  int64_t rows = input.batch * input.tokens;
  attention_.begin(input, stack, positions_, slots_);
  rotary_tables(rows);
  temperatures(rows);
  embed(input);
  const auto tiles = [&](const auto& body) {
    for (int64_t first = 0; first < rows; first += tile_) body(first, std::min(tile_, rows - first));
  };
  tiles([&](int64_t first, int64_t count) {
    parallel_for(count, row_grain(hidden_size_), [&](int64_t begin, int64_t end) {
      rms_norm_(offset(hidden_, (first + begin) * hidden_size_, type_), model_->layers[0].input_norm.data(), eps_,
                offset(normed_, begin * hidden_size_, type_), end - begin, hidden_size_);
    });
    project(0, first, count);
  });
  const auto view = [&](char* data, int64_t heads, int64_t row) {
    return head_view(data, type_, input.batch, heads, input.tokens, d.head_dim, row);
  };
  const kvp_tensor q = view(qkv_, d.q_heads, qkv_width_);
  const kvp_tensor k = view(offset(qkv_, q_width_, type_), d.kv_heads, qkv_width_);
  const kvp_tensor v = view(offset(qkv_, q_width_ + kv_width_, type_), d.kv_heads, qkv_width_);
  kvp_tensor out = view(attended_, d.q_heads, q_width_);
  for (size_t layer = 0; layer < model_->layers.size(); ++layer) {
    attention_.run(static_cast<int32_t>(layer), q, k, v, out);
    if (watch_) {
      std::vector<float> plain(static_cast<size_t>(rows * q_width_));
      kernels_.to_float(attended_, plain.data(), rows * q_width_);
      watch_(layer, plain.data(), rows, q_width_);
    }
    if (layer + 1 == model_->layers.size() && which == Logits::kLast && input.tokens > 1) {
      keep_last(input);
      rows = input.batch;
    }
    tiles([&](int64_t first, int64_t count) { rest_of_layer(layer, first, count); });
  }
  return rows;
}

void StepRunner::embed(const ForwardInput& input) {
  const int64_t rows = input.batch * input.tokens;
  parallel_for(rows, row_grain(hidden_size_), [&](int64_t begin, int64_t end) {
    char* const to = offset(hidden_, begin * hidden_size_, type_);
    model_->embedding().lookup(input.ids + begin, end - begin, to);
    if (embedding_scale_ != 1.0f) kernels_.scale(to, embedding_scale_, to, (end - begin) * hidden_size_);
  });
}

void StepRunner::rotary_tables(int64_t rows) {
  const std::vector<float>& frequencies = model_->inverse_frequencies;
  const auto half = static_cast<int64_t>(frequencies.size());
  parallel_for(rows, row_grain(64 * half), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float *c = cos_ + r * half, *s = sin_ + r * half;
      for (int64_t i = 0; i < half; ++i) {
        // The angle is rounded to float32 as in Transformers; its cosine is exact but for the last rounding.
        const double angle = static_cast<float>(positions_[r]) * frequencies[static_cast<size_t>(i)];
        c[i] = static_cast<float>(std::cos(angle));
        s[i] = static_cast<float>(std::sin(angle));
      }
      if (type_ == Type::kFloat32 || model_->description.rope_interleaved) continue;
      uint16_t rounded[kMaxHeadDim];
      for (float* table : {c, s}) {
        kernels_.from_float(table, rounded, half);
        kernels_.to_float(rounded, table, half);
      }
    }
  });
}

void StepRunner::temperatures(int64_t rows) {
  const Description& d = model_->description;
  if (d.temperature_scale == 0) return;
  const auto scale = static_cast<float>(d.temperature_scale), floor = static_cast<float>(d.temperature_floor);
  for (int64_t r = 0; r < rows; ++r) {
    const float steps = std::floor((static_cast<float>(slots_[r]) + 1.0f) / floor);
    temperatures_[r] = static_cast<float>(std::log1p(static_cast<double>(steps))) * scale + 1.0f;
  }
}

void StepRunner::project(size_t layer, int64_t first, int64_t rows) {
  const Description& d = model_->description;
  const PackedLayer& weights = model_->layers[layer];
  char* const qkv = offset(qkv_, first * qkv_width_, type_);
  products_.run(weights.qkv, normed_, qkv, rows);
  if (d.layers[layer].rope || !weights.q_norm.empty() || !weights.k_norm.empty()) {
    rotate(layer, qkv, first, rows);
  } else if (d.temperature_scale != 0) {
    parallel_for(rows, row_grain(q_width_), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        char* const q = offset(qkv, r * qkv_width_, type_);
        kernels_.scale(q, temperatures_[first + r], q, q_width_);
      }
    });
  }
}

void StepRunner::rotate(size_t layer, char* qkv, int64_t first, int64_t rows) {
  const Description& d = model_->description;
  const PackedLayer& weights = model_->layers[layer];
  const bool rotary = d.layers[layer].rope;
  const auto weight_of = [](const std::vector<float>& norm) { return norm.empty() ? nullptr : norm.data(); };
  const int64_t half = d.head_dim / 2;
  parallel_for(rows, row_grain(q_width_ + kv_width_), [&](int64_t begin, int64_t end) {
    const float* cos = rotary ? cos_ + (first + begin) * half : nullptr;
    const float* sin = rotary ? sin_ + (first + begin) * half : nullptr;
    char* const q = offset(qkv, begin * qkv_width_, type_);
    if (d.rope_interleaved) {
      // q and k lie side by side and are treated alike.
      kernels_.rope_pairs(q, qkv_width_, end - begin, d.q_heads + d.kv_heads, d.head_dim, cos, sin, d.qk_unit_norm,
                          eps_);
      return;
    }
    kernels_.rope(q, qkv_width_, end - begin, d.q_heads, d.head_dim, cos, sin, weight_of(weights.q_norm), eps_);
    kernels_.rope(offset(q, q_width_, type_), qkv_width_, end - begin, d.kv_heads, d.head_dim, cos, sin,
                  weight_of(weights.k_norm), eps_);
  });
}

void StepRunner::norm_delta(const std::vector<float>& weight, int64_t rows) {
  if (weight.empty()) return;
  parallel_for(rows, row_grain(hidden_size_), [&](int64_t begin, int64_t end) {
    char* const at = offset(delta_, begin * hidden_size_, type_);
    rms_norm_(at, weight.data(), eps_, at, end - begin, hidden_size_);
  });
}

void StepRunner::add_norm(int64_t first, int64_t rows, const std::vector<float>& weight, void* to) {
  parallel_for(rows, row_grain(hidden_size_), [&](int64_t begin, int64_t end) {
    add_rms_norm_(offset(hidden_, (first + begin) * hidden_size_, type_), offset(delta_, begin * hidden_size_, type_),
                  weight.data(), eps_, offset(to, begin * hidden_size_, type_), end - begin, hidden_size_);
  });
}

void StepRunner::mlp(const PackedLayer& weights, int64_t rows) {
  const int64_t width = model_->width_of(weights.down);
  products_.run(weights.gate_up, normed_, gate_up_, rows);
  parallel_for(rows, row_grain(2 * width), [&](int64_t begin, int64_t end) {
    activate_(offset(gate_up_, begin * 2 * width, type_), offset(activated_, begin * width, type_), end - begin, width);
  });
  products_.run(weights.down, activated_, delta_, rows);
  if (!weights.experts.empty()) experts_->add(weights, normed_, delta_, rows);
}

void StepRunner::rest_of_layer(size_t layer, int64_t first, int64_t rows) {
  const PackedLayer& weights = model_->layers[layer];
  products_.run(weights.o, offset(attended_, first * q_width_, type_), delta_, rows);
  norm_delta(weights.attention_out_norm, rows);
  add_norm(first, rows, weights.mlp_norm, normed_);
  mlp(weights, rows);
  norm_delta(weights.mlp_out_norm, rows);
  if (layer + 1 < model_->layers.size()) {
    add_norm(first, rows, model_->layers[layer + 1].input_norm, normed_);
    project(layer + 1, first, rows);
  } else {
    add_norm(first, rows, model_->final_norm, offset(hidden_, first * hidden_size_, type_));
  }
}

void StepRunner::keep_last(const ForwardInput& input) {
  for (int64_t b = 0; b < input.batch; ++b) {
    const int64_t count = input.count != nullptr ? input.count[b] : input.tokens;
    const int64_t from = b * input.tokens + std::max<int64_t>(0, count - 1);
    std::memmove(offset(hidden_, b * hidden_size_, type_), offset(hidden_, from * hidden_size_, type_),
                 static_cast<size_t>(hidden_size_) * size_of(type_));
    std::memmove(offset(attended_, b * q_width_, type_), offset(attended_, from * q_width_, type_),
                 static_cast<size_t>(q_width_) * size_of(type_));
  }
}

void StepRunner::write_logits(int64_t rows, float* logits) {
  const int64_t vocab = model_->description.vocab_size;
  const auto cap = static_cast<float>(model_->description.logit_softcap);
  for (int64_t first = 0; first < rows; first += logit_rows_) {
    const int64_t count = std::min(logit_rows_, rows - first);
    products_.run(model_->lm_head, offset(hidden_, first * hidden_size_, type_), logits_, count);
    if (cap != 0) {
      parallel_for(count * vocab, row_grain(1), [&](int64_t begin, int64_t end) {
        kernels_.softcap(offset(logits_, begin, type_), cap, end - begin);
      });
    }
    kernels_.to_float(logits_, logits + first * vocab, count * vocab);
  }
}

}  // namespace kvplug::model
