// SPDX-License-Identifier: Apache-2.0
// The records of Transformers' quantized layers, replayed on `quantized` with hf_compat = "strict" and the built-in
// quantizers, through the plugin ABI. After each operation: what update shows, the lengths, how many tokens wait in the
// residual and how many are packed; at the end what is stored, from the record's own packed bytes. quanto and fp8:
// every bit, any NaN for a NaN. hqq: within kHqqTolerance, as its solver's means are summed in another order.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>

#include "golden/layers_file.h"
#include "support/kinds.h"
#include "support/loaded_quantizer.h"

namespace kvplug::testing {
namespace {

const char kCrop[] = "strict: crop is refused (the record crops the residual alone, or fails obscurely)";
const char kBatch[] = "strict: rows of packed tokens are repeated too (the record repeats the residual alone)";
const char kCounted[] = "strict: a refused update changes nothing (the record counts its tokens)";

constexpr double kHqqTolerance = 1e-3;

// hqq: where a change of the input by its last place changes codes, so that what the means' last places did to one
// packing is another result after the next. These start again from the record's values at each packing.
const std::set<std::string> kUnstable = {"HQQQuantizedLayer/1/0", "HQQQuantizedLayer/2/2"};

std::string backend_of(const std::string& layer_class) {
  return layer_class == "QuantoQuantizedLayer" ? "quanto" : layer_class == "HQQQuantizedLayer" ? "hqq" : "fp8";
}

class StrictReplay {
 public:
  StrictReplay(const LayersFile& file, const json& golden, std::map<std::string, size_t>& decisions)
      : file_(file), case_(golden), decisions_(decisions), backend_(backend_of(golden.at("class"))) {
    const json& ops = golden.at("ops");
    const auto first = std::find_if(ops.begin(), ops.end(), [](const json& op) { return op.at("op") == "update"; });
    const test::Values k = values_of(tensor(first->at("in").at("keys"))),
                       v = values_of(tensor(first->at("in").at("values")));
    dtype_ = k.dtype();
    heads_ = k.t.shape[1];
    const auto k_dim = static_cast<int32_t>(k.t.shape[3]), v_dim = static_cast<int32_t>(v.t.shape[3]);
    const auto heads = static_cast<int32_t>(heads_);
    token_bytes_ = heads_ * (k_dim + v_dim) * dtype_.bits / 8;
    const json& config = golden.at("config");
    const auto options = [&](const char* axis) {
      test::LoadedQuantizer::Options out = {test::option("hf_compat", "strict")};
      if (backend_ == "fp8") return out;
      out.push_back(test::option("nbits", config.value("nbits", int64_t{4})));
      out.push_back(test::option("axis", config.value(axis, int64_t{0})));
      out.push_back(test::option("q_group_size", config.value("q_group_size", int64_t{64})));
      return out;
    };
    k_.emplace(backend_, options("axis_key"), dtype_, k_dim, KVP_ROLE_KEY);
    v_.emplace(backend_, options("axis_value"), dtype_, v_dim, KVP_ROLE_VALUE);
    handles_[0] = {sizeof(kvp_qhandle), k_->iface(), k_->self(), backend_.c_str()};
    handles_[1] = {sizeof(kvp_qhandle), v_->iface(), v_->self(), backend_.c_str()};
    cache_options_ = {test::option("hf_compat", "strict")};
    if (backend_ != "fp8") {
      cache_options_.push_back(test::option("residual_length", config.value("residual_length", int64_t{128})));
    }
    test::CreateArgs args({{heads, heads, k_dim, v_dim}}, dtype_, 1);
    args.create.quantizer_key = &handles_[0];
    args.create.quantizer_value = &handles_[1];
    args.create.options = cache_options_.data();
    args.create.n_options = cache_options_.size();
    cache_.emplace(test::iface_of(kind()), args.create);
  }

  void run() {
    const json& ops = case_.at("ops");
    for (size_t i = 0; i < ops.size() && !astray_; ++i) {
      SCOPED_TRACE("operation " + std::to_string(i) + ", " + ops[i].at("op").get<std::string>());
      ASSERT_NO_FATAL_FAILURE(operation(ops[i]));
      if (!astray_) expect_state(ops[i].at("state"));
    }
    if (!astray_) expect_final();
  }

 private:
  static const test::Kind& kind() {
    return *std::find_if(std::begin(test::kKinds), std::end(test::kKinds),
                         [](const test::Kind& kind) { return std::string(kind.name) == "quantized"; });
  }
  const GoldenTensor& tensor(const json& name) const { return file_.tensors.at(name.get<std::string>()); }

  void operation(const json& op) {
    const auto name = op.at("op").get<std::string>();
    const json error = op.value("error", json());
    if (name == "update") return update(op, error);
    if (name == "reset") {
      ASSERT_EQ(cache_->reset(), KVP_OK) << cache_->text();
      packed_ = 0;
      return;
    }
    const json& argument = op.at("args").at(0);
    if (name == "crop") {
      const auto n = -argument.get<int64_t>();
      ASSERT_EQ(cache_->crop({n}), n == 0 ? KVP_OK : KVP_UNSUPPORTED) << cache_->text();
      if (n == 0) return;
      ++decisions_[kCrop];
      ASSERT_NE(cache_->text().find("\"fixed\""), std::string::npos) << cache_->text();
      // A record that has cropped its residual speaks of another state than ours.
      residual_is_known_ = !error.is_null();
      return;
    }
    std::vector<int64_t> src;
    if (name == "reorder_cache") {
      src = argument.get<std::vector<int64_t>>();
      if (backend_ != "fp8" && batch_ > 0) reordered_ = true;
    } else {
      ASSERT_EQ(name, "batch_repeat_interleave");
      for (int64_t i = 0; i < batch_ * argument.get<int64_t>(); ++i) src.push_back(i / argument.get<int64_t>());
      ++decisions_[kBatch];
      astray_ = true;
    }
    if (batch_ == 0) return;
    ASSERT_EQ(cache_->gather(src), KVP_OK) << cache_->text();
  }

  void update(const json& op, const json& error) {
    const test::Values k = values_of(tensor(op.at("in").at("keys"))), v = values_of(tensor(op.at("in").at("values")));
    const int64_t before = cache_->lengths(0, 0).seen;
    kvp_tensor out_k{}, out_v{};
    if (!error.is_null()) {
      ASSERT_EQ(cache_->update(0, k, v, nullptr, nullptr, &out_k, &out_v), KVP_INVALID_ARGUMENT) << cache_->text();
      ASSERT_NE(cache_->text().find("q_group_size"), std::string::npos) << cache_->text();
      ASSERT_EQ(cache_->lengths(0, 0).seen, before);
      ++decisions_[kCounted];
      counted_ += k.t.shape[2];
      return;
    }
    ASSERT_EQ(cache_->update(0, k, v, nullptr, nullptr, &out_k, &out_v), KVP_OK) << cache_->text();
    batch_ = k.t.shape[0];
    expect_same(out_k, values_of(tensor(op.at("out").at("keys"))), "keys");
    expect_same(out_v, values_of(tensor(op.at("out").at("values"))), "values");
    const json& waiting = op.at("state").at("stored_keys_shape");
    if (waiting.size() != 4) {
      packed_ = before + k.t.shape[2];
      reordered_ = false;
      if (kUnstable.contains(case_.at("id"))) start_from(op.at("out"));
    }
  }

  // What the record packed is the first that another cache packs.
  void start_from(const json& out) {
    const test::Values k = values_of(tensor(out.at("keys"))), v = values_of(tensor(out.at("values")));
    ASSERT_EQ(cache_->reset(), KVP_OK) << cache_->text();
    ASSERT_EQ(cache_->update(0, k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK) << cache_->text();
  }

  void expect_same(const kvp_tensor& view, const test::Values& record, const char* what) {
    ASSERT_EQ(std::vector<int64_t>(view.shape, view.shape + 4),
              std::vector<int64_t>(record.t.shape, record.t.shape + 4))
        << what;
    const test::Values got{nullptr, view};
    double worst = 0;
    for (int64_t b = 0; b < view.shape[0]; ++b) {
      for (int64_t h = 0; h < view.shape[1]; ++h) {
        for (int64_t s = 0; s < view.shape[2]; ++s) {
          for (int64_t d = 0; d < view.shape[3]; ++d) {
            const float a = got.get(b, h, s, d), want = record.get(b, h, s, d);
            if (a == want || (std::isnan(a) && std::isnan(want))) continue;
            const double off = std::fabs(double{a} - double{want});
            worst = std::isnan(off) ? INFINITY : std::max(worst, off);
          }
        }
      }
    }
    EXPECT_LE(worst, backend_ == "hqq" ? kHqqTolerance : 0) << what;
  }

  void expect_state(const json& state) {
    EXPECT_EQ(state.at("seq_length").get<int64_t>() - counted_, cache_->lengths(0, 1).seen);
    for (const int64_t q : {1, 3}) {
      const kvp_lengths ours = cache_->lengths(0, q);
      const json& record = state.at("mask_sizes_q" + std::to_string(q));
      EXPECT_EQ(ours.kv_len, record.at(0).get<int64_t>() - counted_) << "query of " << q;
      EXPECT_EQ(ours.kv_offset, record.at(1)) << "query of " << q;
    }
    if (!residual_is_known_) return;
    const json& shape = state.at("stored_keys_shape");
    const int64_t waiting = shape.size() == 4 ? shape.at(2).get<int64_t>() : 0;
    EXPECT_EQ(cache_->memory().used[KVP_TIER_HOST][KVP_PURPOSE_RESIDUAL],
              static_cast<uint64_t>(batch_ * waiting * token_bytes_));
  }

  // The record's packed bytes, unpacked by our quantizer, with its residual behind.
  void expect_final() {
    const json final = case_.value("final", json());
    kvp_update_args args{};
    args.struct_size = sizeof args;
    kvp_tensor views[2] = {};
    if (!final.is_object() || !final.contains("q_keys") || reordered_) return;
    ASSERT_EQ(cache_->update(args, &views[0], &views[1]), KVP_OK) << cache_->text();
    for (const bool keys : {true, false}) {
      const json& q = final.at(keys ? "q_keys" : "q_values");
      test::LoadedQuantizer& quantizer = keys ? *k_ : *v_;
      const auto s = q.at("shape").get<std::vector<int64_t>>();
      ASSERT_EQ(s[2], packed_);
      const test::Values unpacked = test::make(dtype_, {s[0], s[1], s[2], s[3]});
      kvp_qplan plan{};
      ASSERT_EQ(quantizer.plan(unpacked.t, &plan), KVP_OK) << quantizer.text();
      test::Packed packed(plan);
      const std::vector<const char*> parts =
          backend_ == "fp8" ? std::vector<const char*>{"e4m3", "scale"}
                            : std::vector<const char*>{"packed", "scale", backend_ == "hqq" ? "zero" : "shift"};
      ASSERT_EQ(parts.size(), packed.memory.size());
      for (size_t i = 0; i < parts.size(); ++i) {
        const std::string& bytes = tensor(q.at(parts[i])).bytes;
        ASSERT_EQ(bytes.size(), packed.memory[i].size()) << parts[i];
        std::memcpy(packed.memory[i].data(), bytes.data(), bytes.size());
      }
      kvp_tensor out = unpacked.t;
      ASSERT_EQ(quantizer.dequantize(packed, &out), KVP_OK) << quantizer.text();
      kvp_tensor front = views[keys ? 0 : 1], back = front;
      front.shape[2] = s[2];
      expect_same(front, unpacked, keys ? "packed keys" : "packed values");
      if (!final.contains(keys ? "keys" : "values")) continue;
      back.shape[2] -= s[2];
      back.data = static_cast<std::byte*>(back.data) + s[2] * back.strides[2] * dtype_.bits / 8;
      expect_same(back, values_of(tensor(final.at(keys ? "keys" : "values"))), "residual");
    }
  }

  const LayersFile& file_;
  const json& case_;
  std::map<std::string, size_t>& decisions_;
  const std::string backend_;
  kvp_dtype dtype_{};
  int64_t heads_ = 0, token_bytes_ = 0;
  std::optional<test::LoadedQuantizer> k_, v_;
  kvp_qhandle handles_[2] = {};
  std::vector<kvp_option> cache_options_;
  std::optional<test::LoadedCache> cache_;
  int64_t batch_ = 0, packed_ = 0, counted_ = 0;
  bool astray_ = false, residual_is_known_ = true;
  bool reordered_ = false;  // since it was packed: the record's packed rows are in the old order
};

}  // namespace

void add_strict_layer_case(Tally& tally, const LayersFile& file, const json& golden,
                           std::map<std::string, size_t>& decisions) {
  tally.run(golden.at("class").get<std::string>() + " on quantized", golden.at("id"),
            [&file, &golden, &decisions] { StrictReplay(file, golden, decisions).run(); });
}

}  // namespace kvplug::testing
