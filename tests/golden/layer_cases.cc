// SPDX-License-Identifier: Apache-2.0
// The records of Transformers' cache layers (tests/data/golden/layers), replayed on our kinds through the plugin ABI:
// what the dynamic classes did on `dynamic` and on `offloaded` with a file, what the static ones did on `static` and
// `offloaded_static`; what the quantized ones did on `quantized` (strict_layer_cases.cc). Views, lengths and what is
// left at the end equal the record, value for value.
//
// Where we decided otherwise, the reference cache of the tests says what we do, and from there on, until a reset, the
// case is compared with it alone. The decisions are those below, no others; each time one is needed it is counted, and
// the counts are printed. Beside them, always: static kinds present the filled part only, so the record's blank slots
// are checked to be blank and left out; `seen` is compared, Transformers' max_length of a window is not one of ours.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "golden/layers_file.h"
#include "support/kinds.h"

namespace kvplug::testing {
namespace {

// Where ours differs from the record.
const char kEmptying[] = "crop of all that was seen empties and never fails (the record refuses, or counts below zero)";
const char kCropOfNothing[] = "crop of nothing without recording is a no-op (the record refuses it)";
const char kStaticCrop[] = "static kinds can crop (the record cannot)";
const char kBeyondRecord[] = "crop beyond what is kept is refused (the record loses context silently)";
const char kAddUp[] = "crops in a row add up (the record loses context silently)";
const char kPositive[] = "a positive argument of crop cannot be said in the ABI (the record refuses it)";
const char kWindowOfOne[] = "a window of 1 keeps nothing (the record keeps everything)";
const char kCapacity[] = "a full cache refuses before anything changes (the record counts first)";
const char kWideWindow[] = "a window wider than the capacity is not cut down: CAPACITY (the record forgets)";

// Slots seen at the end of the cases in which we differ, by hand from the specification.
const std::map<std::string, int64_t> kSeenAtEnd = {
    {"E2/plain/-3", 46},      {"E2/plain/0", 46},  {"E2/plain/-46", 1},       {"E2/plain/-45", 1},
    {"E2/plain/-34", 46},     {"E2/plain/2", 46},  {"E2/recording/2", 46},    {"E2/recording/-46", 1},
    {"E2/exactly_window", 4}, {"E2/two_crops", 7}, {"E2/late_recording", 11}, {"E7", 2},
    {"E7/cross", 4},          {"E9/42", 46},       {"E9/uninitialised", 2},
};

class Replay {
 public:
  Replay(const test::Kind& kind, const LayersFile& file, const json& golden, std::map<std::string, size_t>& decisions)
      : file_(file), case_(golden), decisions_(decisions) {
    const json config = golden.at("config");
    window_ = config.value("sliding_window", int64_t{0});
    capacity_ = kind.fixed ? config.at("max_cache_len").get<int64_t>() : -1;
    const json& ops = golden.at("ops");
    const auto first = std::find_if(ops.begin(), ops.end(), [](const json& op) { return op.at("op") == "update"; });
    const GoldenTensor& k = tensor(first->at("in").at("keys"));
    const GoldenTensor& v = tensor(first->at("in").at("values"));
    const auto heads = static_cast<int32_t>(k.shape[1]);
    shapes_ = {{heads, heads, static_cast<int32_t>(k.shape[3]), static_cast<int32_t>(v.shape[3]),
                window_ > 0 ? KVP_LAYER_SLIDING : KVP_LAYER_FULL, window_}};
    if (kind.offloaded) folder_.emplace();
    args_.emplace(kind, shapes_, test::kF32, 1, capacity_, folder_ ? folder_->path().string() : "");
    cache_.emplace(test::iface_of(kind), args_->create);
    want_.emplace(test::reference_of(shapes_));
  }

  void run() {
    const json& ops = case_.at("ops");
    for (size_t i = 0; i < ops.size(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i) + ", " + ops[i].at("op").get<std::string>());
      ASSERT_NO_FATAL_FAILURE(operation(ops[i]));
      ASSERT_NO_FATAL_FAILURE(test::expect_kind_same(*cache_, *want_, limited() ? capacity_ : -1));
      if (!astray_) {
        ASSERT_NO_FATAL_FAILURE(expect_state(ops[i].at("state")));
      }
    }
    if (!astray_) expect_final();
    if (const auto seen = kSeenAtEnd.find(case_.at("id")); seen != kSeenAtEnd.end()) {
      EXPECT_EQ(cache_->lengths(0, 1).seen, seen->second);
    }
  }

 private:
  const GoldenTensor& tensor(const json& name) const { return file_.tensors.at(name.get<std::string>()); }
  bool limited() const { return capacity_ > 0 && (window_ == 0 || window_ > capacity_); }
  // From here on the record speaks of another state than ours.
  void astray(const char* decision) {
    decide(decision);
    astray_ = true;
  }
  void decide(const char* decision) { ++decisions_[decision]; }

  void operation(const json& op) {
    const auto name = op.at("op").get<std::string>();
    const json error = op.value("error", json());
    if (name == "update") {
      update(op, error);
    } else if (name == "crop") {
      crop(op.at("args").at(0), op.at("state"), error);
    } else {
      ASSERT_TRUE(error.is_null()) << error;
      if (name == "reset") {
        ASSERT_EQ(cache_->reset(), KVP_OK) << cache_->text();
        want_->reset();
        astray_ = false;
      } else if (name == "activate_past_recording") {
        ASSERT_EQ(cache_->set_rollback(int64_t{1} << 40), KVP_OK) << cache_->text();
        want_->set_rollback(int64_t{1} << 40);
      } else {
        gather(name, op.at("args").at(0));
      }
    }
  }

  void update(const json& op, const json& error) {
    const test::Values k = values_of(tensor(op.at("in").at("keys"))), v = values_of(tensor(op.at("in").at("values")));
    const int64_t tokens = k.t.shape[2];
    const bool fits = !limited() || want_->longest(0) + tokens <= capacity_;
    kvp_tensor out_k{}, out_v{};
    if (!fits) {
      ASSERT_EQ(cache_->update(0, k, v, nullptr, nullptr, &out_k, &out_v), KVP_CAPACITY) << cache_->text();
      ASSERT_NE(cache_->text().find(std::to_string(capacity_)), std::string::npos) << cache_->text();
      ASSERT_TRUE(astray_ || window_ > capacity_ || error.value("type", "") == "IndexError") << "the record has room";
      astray(window_ > capacity_ ? kWideWindow : kCapacity);
      return;
    }
    ASSERT_TRUE(astray_ || error.is_null()) << "the record refuses: " << error;
    const int64_t offset = want_->batch() == 0 ? 0 : want_->kv_offset(0), kv_len = want_->kv_len(0, tokens);
    ASSERT_EQ(cache_->update(0, k, v, nullptr, nullptr, &out_k, &out_v), KVP_OK) << cache_->text();
    want_->append(0, k, v, nullptr, nullptr);
    ASSERT_NO_FATAL_FAILURE(test::expect_kind_views(*want_, 0, out_k, out_v, offset, kv_len));
    if (astray_ || error.is_object()) return;
    EXPECT_TRUE(equals_record(out_k, tensor(op.at("out").at("keys")))) << "keys";
    EXPECT_TRUE(equals_record(out_v, tensor(op.at("out").at("values")))) << "values";
  }

  // A view against what the record returned or stored. The record may be longer: behind by blank slots (static), in
  // front by tokens that are not needed (kept longer than we do).
  ::testing::AssertionResult equals_record(const kvp_tensor& view, const GoldenTensor& record) {
    const std::vector<int64_t>& s = record.shape;
    const std::vector<float> all = record.floats();
    const auto at = [&](int64_t b, int64_t h, int64_t slot) {
      return &all[static_cast<size_t>(((b * s[1] + h) * s[2] + slot) * s[3])];
    };
    const int64_t n = view.shape[2];
    if (s[0] != view.shape[0] || s[1] != view.shape[1] || s[2] < n || s[3] != view.shape[3]) {
      return ::testing::AssertionFailure()
             << "the record has shape " << ::testing::PrintToString(s) << ", the view is " << n << " long";
    }
    const bool blanks = capacity_ > 0 && want_->longest(0) < s[2];
    const int64_t first = blanks ? 0 : s[2] - n;
    if (first > 0 && window_ == 1) decide(kWindowOfOne);
    for (int64_t b = 0; blanks && b < s[0]; ++b) {
      for (int64_t h = 0; h < s[1]; ++h) {
        for (int64_t slot = n; slot < s[2]; ++slot) {
          if (std::any_of(at(b, h, slot), at(b, h, slot) + s[3], [](float x) { return x != 0; })) {
            return ::testing::AssertionFailure() << "slot " << slot << " of the record is not blank";
          }
        }
      }
    }
    return test::same_view(view, first, at);
  }

  void crop(int64_t argument, const json& state, const json& error) {
    if (argument > 0) {
      ASSERT_FALSE(error.is_null());
      decide(kPositive);
      return;
    }
    const std::vector<int64_t> n = {-argument};
    const int64_t seen = want_->longest(0);
    const bool allowed = want_->can_crop(n);
    for (const uint32_t flag : {KVP_CALL_CHECK, 0u}) {
      ASSERT_EQ(cache_->crop(n, flag), allowed ? KVP_OK : KVP_INVALID_STATE) << cache_->text();
    }
    if (allowed) want_->crop(n);
    if (astray_) return;
    if (!allowed && !error.is_null()) return;  // both refuse
    if (!allowed) {
      astray(kBeyondRecord);
    } else if (!error.is_null()) {
      ASSERT_TRUE(n[0] == 0 || n[0] >= seen || capacity_ > 0) << "the record refuses: " << error;
      if (n[0] == 0) {
        decide(kCropOfNothing);
      } else {
        astray(n[0] >= seen ? kEmptying : kStaticCrop);
        astray_ = seen > 0;
      }
    } else if (state.at("seq_length") < 0) {
      astray(kEmptying);
    } else if (window_ > 0 && state.at("stored_keys_shape").at(2) < std::min(seen - n[0], window_ - 1)) {
      astray(kAddUp);
    }
  }

  void gather(const std::string& name, const json& argument) {
    std::vector<int64_t> src;
    if (name == "batch_repeat_interleave") {
      for (int64_t i = 0; i < want_->batch() * argument.get<int64_t>(); ++i) src.push_back(i / argument.get<int64_t>());
    } else {
      ASSERT_TRUE(name == "reorder_cache" || name == "batch_select_indices") << name;
      src = argument.get<std::vector<int64_t>>();
    }
    if (want_->batch() == 0) return;  // nothing to move, in the record too
    ASSERT_EQ(cache_->gather(src), KVP_OK) << cache_->text();
    want_->gather(src);
  }

  void expect_state(const json& state) {
    EXPECT_EQ(state.at("seq_length"), cache_->lengths(0, 1).seen);
    for (const int64_t q : {1, 3}) {
      const kvp_lengths ours = cache_->lengths(0, q);
      if (limited() && window_ > 0 && ours.seen + q > capacity_) continue;  // what comes next does not fit: kWideWindow
      const json& record = state.at("mask_sizes_q" + std::to_string(q));
      int64_t kv_len = record.at(0);
      if (capacity_ > 0) {
        const int64_t slots = window_ > 0 ? std::min(window_, capacity_) : capacity_;
        if (window_ == 0 || ours.seen + q <= slots) {  // blank slots up to the end
          EXPECT_EQ(kv_len, slots);
          kv_len = ours.seen + q;
        }
      }
      EXPECT_EQ(ours.kv_len, kv_len) << "query of " << q;
      EXPECT_EQ(ours.kv_offset, record.at(1)) << "query of " << q;
    }
  }

  void expect_final() {
    const json final = case_.value("final", json());
    if (!final.is_object() || !final.contains("keys") || want_->longest(0) == 0) return;
    kvp_update_args args{};
    args.struct_size = sizeof args;
    kvp_tensor k{}, v{};
    ASSERT_EQ(cache_->update(args, &k, &v), KVP_OK) << cache_->text();
    EXPECT_TRUE(equals_record(k, tensor(final.at("keys")))) << "keys at the end";
    EXPECT_TRUE(equals_record(v, tensor(final.at("values")))) << "values at the end";
  }

  const LayersFile& file_;
  const json& case_;
  std::map<std::string, size_t>& decisions_;
  int64_t window_ = 0, capacity_ = -1;
  std::vector<test::LayerShape> shapes_;
  std::optional<test::TempFolder> folder_;
  std::optional<test::KindArgs> args_;
  std::optional<test::LoadedCache> cache_;
  std::optional<test::ReferenceCache> want_;
  bool astray_ = false;
};

// What is not replayed, and why.
const char* skipped(const std::string& name) {
  if (name.find("Indexed") != std::string::npos) return "indexer keys: kvp.index/1 is a draft that no kind serves";
  if (name.find("LinearAttention") != std::string::npos)
    return "state layers: no kind serves kvp.state/1 in this release";
  if (name == "DummyLayer") return "placeholder layers: the host resolves them, no plugin sees one";
  return nullptr;
}

int run_all() {
  Tally tally(true);
  std::map<std::string, size_t> decisions;
  std::vector<std::unique_ptr<LayersFile>> files;
  for (const char* name : {"handwritten", "random"}) {
    files.push_back(std::make_unique<LayersFile>(name));
    const LayersFile& file = *files.back();
    for (const json& golden : file.cases) {
      const auto layer = golden.at("class").get<std::string>();
      if (const char* reason = skipped(layer)) {
        tally.skip(layer, reason);
        continue;
      }
      if (layer.find("Quantized") != std::string::npos) {
        add_strict_layer_case(tally, file, golden, decisions);
        continue;
      }
      const bool fixed = layer.rfind("Static", 0) == 0;
      for (const test::Kind& kind : test::kKinds) {
        if (kind.fixed != fixed) continue;
        tally.run(layer + " on " + kind.name, golden.at("id"), [&file, &golden, &kind, &decisions] {
          Replay replay(kind, file, golden, decisions);
          replay.run();
        });
      }
    }
  }
  const int failed = RUN_ALL_TESTS();
  for (const auto& [decision, times] : decisions) tally.note(std::to_string(times) + " times: " + decision);
  return tally.close() ? failed : 1;
}

}  // namespace
}  // namespace kvplug::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    return kvplug::testing::run_all();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
