// SPDX-License-Identifier: Apache-2.0
// Beam search over a toy decoder of two attention layers: a cache whose rows follow their beams by gather finds what is
// found when every beam is fed anew, whole, into an empty cache at every step.
#include <gtest/gtest.h>

#include <algorithm>

#include "kinds.h"

namespace kvplug::test {
namespace {

constexpr int64_t kVocab = 40, kHeads = 4, kKvHeads = 2, kDim = 8, kTexts = 2, kBeams = 3, kSteps = 40;
const std::vector<LayerShape> kShapes = {{kHeads, kKvHeads, kDim, kDim},
                                         {kHeads, kKvHeads, kDim, kDim, KVP_LAYER_SLIDING, 9}};
using Ids = std::vector<int64_t>;

struct Beams {
  std::vector<Ids> ids;        // of each row: prompt, then what was found
  std::vector<double> scores;  // log probabilities
  int64_t moved = 0, shared = 0;
};

class Toy {
 public:
  Toy() {
    Random random(7);
    std::normal_distribution<float> draw;
    for (std::vector<float>* table : {&q_[0], &q_[1], &k_[0], &k_[1], &v_[0], &v_[1], &out_}) {
      for (int64_t i = 0; i < kVocab * kHeads * kDim; ++i) table->push_back(draw(random));
    }
  }

  // Feeds [rows][n] tokens; log probabilities behind the last one, [rows][kVocab].
  std::vector<std::vector<double>> feed(LoadedCache& cache, const std::vector<Ids>& ids, const int64_t* pad) const {
    const auto rows = static_cast<int64_t>(ids.size()), n = static_cast<int64_t>(ids[0].size());
    Values below = make(kF32, {rows, kHeads, n, kDim});
    std::memset(below.t.data, 0, below.memory->size());
    for (int32_t layer = 0; layer < 2; ++layer) {
      const auto given = [&](const std::vector<float>& table, int64_t heads) {
        Values x = make(kF32, {rows, heads, n, kDim});
        each(x, [&](int64_t b, int64_t h, int64_t t, int64_t d) {
          const int64_t id = ids[static_cast<size_t>(b)][static_cast<size_t>(t)];
          const float own = table[static_cast<size_t>((id * kHeads + h) * kDim + d)];
          x.set(own + (pad != nullptr && t < pad[b] ? 0 : below.get(b, h, t, d)), b, h, t, d);
        });
        return x;
      };
      const auto at = static_cast<size_t>(layer);
      const Values q = given(q_[at], kHeads), k = given(k_[at], kKvHeads), v = given(v_[at], kKvHeads);
      Values out = make(kF32, {rows, kHeads, n, kDim});
      kvp_attend_args args{};
      args.struct_size = sizeof args;
      args.layer = layer;
      args.flags = KVP_ATTEND_CAUSAL;
      args.q = &q.t, args.k = &k.t, args.v = &v.t;
      args.pad = pad;
      args.scale = 0.4f;
      EXPECT_EQ(cache.attend(args, &out.t, nullptr), KVP_OK) << cache.text();
      below = out;
    }
    std::vector<std::vector<double>> all;
    for (int64_t b = 0; b < rows; ++b) {
      std::vector<double> logits(static_cast<size_t>(kVocab), 0.0);
      double sum = 0;
      for (int64_t id = 0; id < kVocab; ++id) {
        double& logit = logits[static_cast<size_t>(id)];
        for (int64_t i = 0; i < kHeads * kDim; ++i) {
          logit += static_cast<double>(out_[static_cast<size_t>(id * kHeads * kDim + i)]) *
                   static_cast<double>(below.get(b, i / kDim, n - 1, i % kDim));
        }
        sum += std::exp(logit);
      }
      for (double& x : logits) x -= std::log(sum);
      all.push_back(std::move(logits));
    }
    return all;
  }

 private:
  template <class F>
  static void each(const Values& x, F&& f) {
    for (int64_t b = 0; b < x.t.shape[0]; ++b) {
      for (int64_t h = 0; h < x.t.shape[1]; ++h) {
        for (int64_t t = 0; t < x.t.shape[2]; ++t) {
          for (int64_t d = 0; d < kDim; ++d) f(b, h, t, d);
        }
      }
    }
  }

  std::vector<float> q_[2], k_[2], v_[2], out_;
};

// In `cache`, whose rows are gathered; without one in an empty cache of create_plain each step.
Beams search(const Toy& toy, LoadedCache* cache, const kvp_cache_create& create_plain) {
  Beams beams;
  const int64_t padding[kTexts] = {0, 4}, prompt = 11;
  int64_t pad[kTexts * kBeams] = {};
  for (int64_t r = 0; r < kTexts * kBeams; ++r) {
    Ids ids;
    for (int64_t t = 0; t < prompt; ++t) ids.push_back((r / kBeams * 17 + t * t * 3 + 5) % kVocab);
    pad[r] = padding[r / kBeams];
    beams.ids.push_back(std::move(ids));
    beams.scores.push_back(r % kBeams == 0 ? 0 : -1e9);  // beams differ from the first step on
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<double>> log_p;
    if (cache != nullptr) {
      std::vector<Ids> newest = beams.ids;
      if (step > 0) {
        for (Ids& row : newest) row.erase(row.begin(), row.end() - 1);
      }
      log_p = toy.feed(*cache, newest, step == 0 ? pad : nullptr);
    } else {
      LoadedCache anew(iface_of(kKinds[0]), create_plain);
      log_p = toy.feed(anew, beams.ids, pad);
    }
    std::vector<int64_t> src;
    Beams next;
    for (int64_t text = 0; text < kTexts; ++text) {
      struct Candidate {
        double score;
        int64_t row, id;
      };
      std::vector<Candidate> all;
      for (int64_t r = text * kBeams; r < (text + 1) * kBeams; ++r) {
        const auto row = static_cast<size_t>(r);
        for (int64_t id = 0; id < kVocab; ++id) {
          all.push_back({beams.scores[row] + log_p[row][static_cast<size_t>(id)], r, id});
        }
      }
      std::partial_sort(all.begin(), all.begin() + kBeams, all.end(),
                        [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
      for (int64_t i = 0; i < kBeams; ++i) {
        const Candidate& best = all[static_cast<size_t>(i)];
        next.ids.push_back(beams.ids[static_cast<size_t>(best.row)]);
        next.ids.back().push_back(best.id);
        next.scores.push_back(best.score);
        next.moved += best.row != text * kBeams + i ? 1 : 0;
        next.shared += i > 0 && best.row == src.back() ? 1 : 0;
        src.push_back(best.row);
      }
    }
    next.moved += beams.moved, next.shared += beams.shared;
    beams = std::move(next);
    if (cache == nullptr) continue;
    EXPECT_EQ(cache->gather(src), KVP_OK) << cache->text();
  }
  return beams;
}

class KindsBeams : public ::testing::TestWithParam<Kind> {};

TEST_P(KindsBeams, FollowTheirRows) {
  const Kind kind = GetParam();
  const Toy toy;
  const KindArgs plain(kKinds[0], kShapes, kF32, 1, 64);
  const Beams want = search(toy, nullptr, plain.create);
  EXPECT_GT(want.moved, kSteps / 2) << "beams that never cross prove nothing";
  EXPECT_GT(want.shared, kSteps / 2) << "beams that never split prove nothing";

  struct Way {
    int64_t residual;
    bool attends;
  };
  const std::vector<Way> ways =
      kind.quantized ? std::vector<Way>{{0, false}, {0, true}, {4, false}, {4, true}} : std::vector<Way>{{0, false}};
  for (const Way& way : ways) {
    SCOPED_TRACE("residual_length " + std::to_string(way.residual) + (way.attends ? ", fused" : ""));
    const TempFolder folder;
    KindArgs args(kind, kShapes, kF32, 2, 64, folder.path().string());
    if (kind.quantized) {
      args.quantized.options[0].integer = way.residual;
      args.quantized.k.attends = args.quantized.v.attends = way.attends;
      args.quantized.give(args.create);
    }
    LoadedCache cache(iface_of(kind), args.create);
    const Beams got = search(toy, &cache, plain.create);
    EXPECT_EQ(got.ids, want.ids);
    for (size_t i = 0; i < want.scores.size(); ++i) EXPECT_NEAR(got.scores[i], want.scores[i], 1e-4) << "row " << i;
    if (kind.quantized) {
      EXPECT_GT(cache.counter("packed_tokens"), 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KindsBeams, ::testing::ValuesIn(kKinds), name_of);

}  // namespace
}  // namespace kvplug::test
