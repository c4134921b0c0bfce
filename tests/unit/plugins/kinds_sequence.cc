// SPDX-License-Identifier: Apache-2.0
// What a step of a sequence does with K and V: appending, looking, attending.
#include "kinds_sequence.h"

#include <cmath>

#include "reference_attention.h"

namespace kvplug::test {

void Sequence::update(Instance& to) {
  const bool empty = to.want.empty();
  const int64_t sizes[] = {0, 1, 1, 1, 1, 2, 3, pick(random_, 4, 40), pick(random_, 4, 70), 130};
  const int64_t tokens = sizes[pick(random_, 0, std::size(sizes) - 1)];
  const bool chooses = to.want.batch() == 0 || (empty && tokens > 0);
  const int64_t batch = chooses ? pick(random_, 1, kMostBatch) : to.want.batch();
  // A step that stops half way leaves layers at different lengths.
  const size_t layers = pick(random_, 0, 9) == 0 ? 1 : shapes_.size();
  for (size_t i = 0; i < layers; ++i) {
    SCOPED_TRACE("update of layer " + std::to_string(i) + " by " + std::to_string(tokens));
    bool over = false;
    ASSERT_NO_FATAL_FAILURE(shapes_[i].kind == KVP_LAYER_CROSS ? cross(to, i, batch)
                                                               : update_layer(to, i, batch, tokens, over));
    if (over) return;
  }
}

void Sequence::update_layer(Instance& to, size_t i, int64_t batch, int64_t tokens, bool& over) {
  const LayerShape& s = shapes_[i];
  const auto layer = static_cast<int32_t>(i);
  const bool empty = to.want.empty();
  std::vector<int64_t> pad(static_cast<size_t>(batch)), count(static_cast<size_t>(batch));
  const bool ragged = pick(random_, 0, 2) == 0, padded = pick(random_, 0, 2) == 0;
  int64_t furthest = 0, longest = 0;
  std::vector<int64_t> slot0, live;
  for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
    count[b] = ragged ? pick(random_, 0, tokens) : tokens;
    const std::vector<ReferenceCache::Row>& rows = to.want.layer(i).rows;
    const int64_t seen = empty ? 0 : rows[b].seen();
    const bool holds = !empty && seen > rows[b].pad();
    pad[b] = !padded || holds || pick(random_, 0, 1) == 0 ? 0 : pick(random_, 0, count[b]);
    slot0.push_back(seen);
    live.push_back(count[b]);
    furthest = std::max(furthest, seen + count[b]);
    longest = std::max(longest, seen);
  }
  did("layer " + std::to_string(i) + " + " + std::to_string(tokens) + ", pad " + ::testing::PrintToString(pad) +
      ", count " + ::testing::PrintToString(count));
  const int64_t* pads = padded ? pad.data() : nullptr;
  const int64_t* counts = ragged ? count.data() : nullptr;
  const Values k = random_tensor(dtype_, batch, s.kv_heads, tokens, s.key_dim, random_);
  const Values v = random_tensor(dtype_, batch, s.kv_heads, tokens, s.value_dim, random_);
  kvp_tensor out_k{}, out_v{};
  if (limited(to) && furthest > capacity_) {
    over = true;
    LoadedCache& cache = to.caches[0];
    ASSERT_EQ(cache.update(layer, k, v, pads, counts, &out_k, &out_v), KVP_CAPACITY) << cache.text();
    ASSERT_NE(cache.text().find(std::to_string(capacity_)), std::string::npos) << cache.text();
    ASSERT_EQ(out_k.ndim, 0);
    return;
  }
  const int64_t offset = empty ? 0 : to.want.kv_offset(i);
  const int64_t kv_len = longest + tokens - offset;
  const int64_t way = pick(random_, 0, 2);
  if (way < 2) {
    if (tokens > 0) to.want.append(i, k, v, pads, counts);
    each(to, [&](LoadedCache& cache) {
      const kvp_lengths before = cache.lengths(layer, tokens);
      ASSERT_EQ(before.kv_len, kv_len);
      ASSERT_EQ(before.kv_offset, offset);
      ASSERT_EQ(cache.update(layer, k, v, pads, counts, way == 0 ? nullptr : &out_k, way == 0 ? nullptr : &out_v),
                KVP_OK)
          << cache.text();
      if (way == 1 && tokens > 0) {
        ASSERT_NO_FATAL_FAILURE(expect_kind_views(to.want, i, out_k, out_v, offset, kv_len));
      }
    });
  } else {
    const Values q = random_tensor(dtype_, batch, s.q_heads, tokens, s.key_dim, random_);
    if (tokens > 0) to.want.append(i, k, v, pads, counts);
    attend(to, i, q, &k, &v, pads, counts, offset, kv_len, slot0, live);
  }
  if (::testing::Test::HasFatalFailure()) return;
  to.want.settle();
  to.batch = std::max(to.batch, batch);
  to.tokens = std::max(to.tokens, furthest);
  if (!to.want.empty() && pick(random_, 0, 3) == 0) read_again(to, i);
}

void Sequence::read_again(Instance& to, size_t i) {
  const LayerShape& s = shapes_[i];
  const int64_t batch = to.want.batch(), queries = pick(random_, 1, 3);
  const Values q = random_tensor(dtype_, batch, s.q_heads, queries, s.key_dim, random_);
  std::vector<int64_t> slot0, live(static_cast<size_t>(batch), queries);
  bool there = true;
  for (const ReferenceCache::Row& row : to.want.layer(i).rows) {
    slot0.push_back(row.seen() - queries);
    const int64_t needed = std::max(row.pad(), slot0.back() - s.window + 1);
    if (s.window > 0 && row.seen() > row.pad() && needed < row.kept) there = false;
  }
  did("layer " + std::to_string(i) + " read by " + std::to_string(queries) + (there ? "" : ", refused"));
  if (there) {
    const int64_t kv_offset = to.want.kv_offset(i);
    return attend(to, i, q, nullptr, nullptr, nullptr, nullptr, kv_offset, to.want.kv_len(i, 0), slot0, live);
  }
  Values out = make(dtype_, {batch, s.q_heads, queries, s.value_dim});
  kvp_attend_args args{};
  args.struct_size = sizeof args;
  args.layer = static_cast<int32_t>(i);
  args.flags = KVP_ATTEND_CAUSAL;
  args.q = &q.t;
  args.scale = 1;
  each(to,
       [&](LoadedCache& cache) { ASSERT_EQ(cache.attend(args, &out.t, nullptr), KVP_INVALID_STATE) << cache.text(); });
}

void Sequence::cross(Instance& to, size_t i, int64_t batch) {
  const LayerShape& s = shapes_[i];
  const auto layer = static_cast<int32_t>(i);
  if (to.want.empty() || to.want.longest(i) == 0) {
    const int64_t tokens = pick(random_, 1, 70);
    std::vector<int64_t> count(static_cast<size_t>(batch));
    for (int64_t& n : count) n = pick(random_, 1, tokens);
    did("cross layer " + std::to_string(i) + " + " + std::to_string(tokens) + ", count " +
        ::testing::PrintToString(count));
    const Values k = random_tensor(dtype_, batch, s.kv_heads, tokens, s.key_dim, random_);
    const Values v = random_tensor(dtype_, batch, s.kv_heads, tokens, s.value_dim, random_);
    each(to, [&](LoadedCache& cache) {
      ASSERT_EQ(cache.update(layer, k, v, nullptr, count.data(), nullptr, nullptr), KVP_OK) << cache.text();
    });
    if (::testing::Test::HasFatalFailure()) return;
    to.want.append(i, k, v, nullptr, count.data());
    to.batch = std::max(to.batch, batch);
    to.tokens = std::max(to.tokens, tokens);
    return;
  }
  const int64_t tokens = pick(random_, 1, 4);
  if (pick(random_, 0, 4) == 0) {
    const Values k = random_tensor(dtype_, batch, s.kv_heads, tokens, s.key_dim, random_);
    const Values v = random_tensor(dtype_, batch, s.kv_heads, tokens, s.value_dim, random_);
    each(to, [&](LoadedCache& cache) {
      ASSERT_EQ(cache.update(layer, k, v, nullptr, nullptr, nullptr, nullptr), KVP_INVALID_STATE) << cache.text();
    });
    return;
  }
  const Values q = random_tensor(dtype_, batch, s.q_heads, tokens, s.key_dim, random_);
  std::vector<int64_t> slot0, live(static_cast<size_t>(batch), tokens);
  for (const ReferenceCache::Row& row : to.want.layer(i).rows) slot0.push_back(row.pad());
  attend(to, i, q, nullptr, nullptr, nullptr, nullptr, 0, to.want.kv_len(i, 0), slot0, live);
}

void Sequence::attend(Instance& to, size_t i, const Values& q, const Values* k, const Values* v, const int64_t* pad,
                      const int64_t* count, int64_t kv_offset, int64_t kv_len, const std::vector<int64_t>& slot0,
                      const std::vector<int64_t>& live) {
  const LayerShape& s = shapes_[i];
  const int64_t batch = q.t.shape[0], queries = q.t.shape[2];
  AttendParams p;
  p.scale = 0.1;
  p.causal = s.kind != KVP_LAYER_CROSS;
  p.kv_offset = kv_offset;
  if (pick(random_, 0, 3) == 0) p.softcap = 3;
  int64_t window = 0, chunk = 0;  // what the call asks for beside the layer's own
  if (p.causal && pick(random_, 0, 3) == 0) {
    if (s.kind == KVP_LAYER_FULL && pick(random_, 0, 1) == 0) chunk = pick(random_, 1, 90);
    if (chunk == 0 && s.kind != KVP_LAYER_CHUNKED) window = pick(random_, 1, s.window > 0 ? s.window : 90);
  }
  p.window = window > 0 ? window : s.kind == KVP_LAYER_SLIDING ? s.window : 0;
  p.chunk = chunk > 0 ? chunk : s.kind == KVP_LAYER_CHUNKED ? s.window : 0;
  const Values bias = fill(make(kF32, {pick(random_, 0, 1) == 0 ? 1 : batch, 1, queries, kv_len}), random_);
  // Without appending, a window's queries may see more than there are columns.
  if (pick(random_, 0, 3) == 0 && bias.t.data != nullptr && (k != nullptr || s.window == 0)) p.bias = &bias;
  kvp_attend_args args{};
  args.struct_size = sizeof args;
  args.layer = static_cast<int32_t>(i);
  args.flags = p.causal ? KVP_ATTEND_CAUSAL : 0;
  args.q = &q.t;
  args.k = k == nullptr ? nullptr : &k->t;
  args.v = v == nullptr ? nullptr : &v->t;
  args.pad = pad;
  args.count = count;
  args.bias = p.bias == nullptr ? nullptr : &p.bias->t;
  args.window = window;
  args.chunk = chunk;
  args.scale = static_cast<float>(p.scale);
  args.softcap = static_cast<float>(p.softcap);
  const bool wide = pick(random_, 0, 1) == 0;
  std::vector<Values> outs, lses;
  each(to, [&](LoadedCache& cache) {
    outs.push_back(make(wide ? kF32 : dtype_, {batch, s.q_heads, queries, s.value_dim}));
    lses.push_back(make(kF32, {batch, s.q_heads, queries}));
    ASSERT_EQ(cache.attend(args, &outs.back().t, &lses.back().t), KVP_OK) << cache.text();
    if (kind_.quantized) return;  // merged segments have bits of their own
    ASSERT_EQ(*outs.back().memory, *outs[0].memory) << "bits of attend";
    ASSERT_EQ(*lses.back().memory, *lses[0].memory) << "bits of attend's lse";
  });
  if (::testing::Test::HasFatalFailure()) return;
  // Every query of a short call, some of a long one.
  const double tolerance = (wide                              ? 1e-5
                            : dtype_.bits == 32               ? 1e-5
                            : dtype_.code == KVP_DTYPE_BFLOAT ? 1.0 / 128
                                                              : 1.0 / 1024) *
                           8;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < s.q_heads; ++h) {
      for (int64_t n = 0; n < queries; n += std::max<int64_t>(1, queries / 4)) {
        const int64_t slot = n < live[static_cast<size_t>(b)] ? slot0[static_cast<size_t>(b)] + n : -1;
        const AttendResult r = attend_one(to.want, i, b, q, h, n, slot, p);
        const double lse = static_cast<double>(lses[0].get(b, h, n));
        if (std::isinf(r.lse)) {
          ASSERT_EQ(lse, r.lse) << "layer " << i << ", row " << b << ", query " << n;
        } else {
          ASSERT_NEAR(lse, r.lse, 1e-4 * std::max(1.0, std::abs(r.lse)))
              << "layer " << i << ", row " << b << ", query " << n;
        }
        for (int64_t d = 0; d < s.value_dim; ++d) {
          ASSERT_NEAR(static_cast<double>(outs[0].get(b, h, n, d)), r.out[static_cast<size_t>(d)], tolerance)
              << "layer " << i << ", row " << b << ", head " << h << ", query " << n << ", dim " << d;
        }
      }
    }
  }
}

}  // namespace kvplug::test
