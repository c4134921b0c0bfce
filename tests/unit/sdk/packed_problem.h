// SPDX-License-Identifier: Apache-2.0
// A random problem of attention over packed K/V for tests: codes, scales, pages, a reference in double precision over
// the dequantized values, and the bound that the rounding of q and of the weights leaves.
#pragma once

#include <kvplug/sdk/packed_attention.h>

#include "attention_problem.h"

namespace kvplug::test {

// Codes and groups of all tokens of one row, in token order.
struct PackedTensor {
  sdk::PackedForm form;
  int64_t kv_heads = 0, tokens = 0;
  std::vector<uint8_t> codes;        // [kv_heads][tokens][head_dim]
  std::vector<float> scale, offset;  // [kv_heads][tokens / block][groups]

  size_t code_at(int64_t head, int64_t token, int64_t d) const {
    return static_cast<size_t>((head * tokens + token) * form.head_dim + d);
  }
  size_t group_at(int64_t head, int64_t token, int64_t d) const {
    const int64_t block = form.token_block();
    return static_cast<size_t>((head * (tokens / block) + token / block) * form.groups() +
                               form.group_of(token % block, d));
  }
  double value(int64_t head, int64_t token, int64_t d) const {
    const size_t g = group_at(head, token, d);
    return number(codes[code_at(head, token, d)]) * static_cast<double>(scale[g]) + static_cast<double>(offset[g]);
  }
  // What a code stands for: itself, or a float of 8 bits.
  double number(int code) const {
    if (!form.float8()) return code;
    const int mantissa = form.format == KVP_FORMAT_FP8_E4M3 ? 3 : 2, bias = mantissa == 3 ? 7 : 15;
    const int e = (code & 127) >> mantissa, m = code & ((1 << mantissa) - 1);
    if ((code & 127) >= (mantissa == 3 ? 0x7f : 0x7c)) return std::nan("");
    const double size = std::ldexp(e == 0 ? m : m + (1 << mantissa), std::max(e, 1) - bias - mantissa);
    return code < 128 ? size : -size;
  }
};

struct PackedRow {
  int64_t position = 0, tokens = 0, q_position = 0;
  PackedTensor k, v;
  std::vector<float> q;  // [q_heads][queries][key_dim]
};

struct PackedProblem {
  sdk::PackedForm k, v;
  int64_t q_heads = 1, kv_heads = 1, queries = 1, window = 0, chunk = 0;
  float scale = 1, softcap = 0;
  kvp_dtype q_dtype = kF32;
  std::vector<PackedRow> rows;

  bool sees(const PackedRow& row, int64_t query, int64_t token) const {
    const int64_t at = row.q_position + query, j = row.position + token;
    if (at < 0 || (window > 0 && j <= at - window)) return false;
    return chunk <= 0 || j / chunk == at / chunk;
  }
  kvp_qattend_desc desc() const {
    kvp_qattend_desc d = {};
    d.struct_size = sizeof d;
    d.q_heads = static_cast<int32_t>(q_heads), d.kv_heads = static_cast<int32_t>(kv_heads);
    d.key_dim = static_cast<int32_t>(k.head_dim), d.value_dim = static_cast<int32_t>(v.head_dim);
    d.max_batch = static_cast<int64_t>(rows.size()), d.max_query = queries;
    d.window = window, d.chunk = chunk, d.q_dtype = q_dtype, d.softcap = softcap;
    d.device_type = KVP_DEVICE_CPU;
    return d;
  }
};

struct PackedExpected {
  std::vector<double> out, out_bound;  // [q_heads][queries][value_dim]
  std::vector<double> lse, lse_bound;  // [q_heads][queries]
};

inline double factor_limit(int bits) { return bits == 8 ? 16383 : 127; }
inline double middle(int bits) { return ((1 << bits) - 1) / 2.0; }

// Rounding x to integer factors of max|x| / limit leaves at most half a factor a product with (code - middle); what
// float32 rounds comes on top (kFloat, of the sum of sizes).
inline PackedExpected expected(const PackedProblem& p, const PackedRow& row) {
  constexpr double kFloat = 4e-6;
  const int64_t dk = p.k.head_dim, dv = p.v.head_dim, group = p.q_heads / p.kv_heads;
  const double lk = factor_limit(p.k.bits), lv = factor_limit(p.v.bits);
  const bool folded = p.k.group_dim == KVP_GROUP_TOKENS;
  // Of every element: the value, |scale|, its largest possible size, |code - middle|.
  struct Spread {
    std::vector<double> value, scale, size, code;
    explicit Spread(const PackedTensor& x) {
      for (int64_t h = 0; h < x.kv_heads; ++h) {
        for (int64_t t = 0; t < x.tokens; ++t) {
          for (int64_t d = 0; d < x.form.head_dim; ++d) {
            const size_t g = x.group_at(h, t, d);
            const double c = x.number(x.codes[x.code_at(h, t, d)]), o = static_cast<double>(x.offset[g]);
            scale.push_back(std::fabs(static_cast<double>(x.scale[g])));
            value.push_back(c * static_cast<double>(x.scale[g]) + o);
            size.push_back(std::fabs(c) * scale.back() + std::fabs(o));
            code.push_back(x.form.float8() ? 0 : std::fabs(c - middle(x.form.bits)));
          }
        }
      }
    }
  };
  const Spread k(row.k), v(row.v);
  PackedExpected e;
  for (int64_t h = 0; h < p.q_heads; ++h) {
    for (int64_t i = 0; i < p.queries; ++i) {
      const int64_t kv = h / group;
      const float* q = &row.q[static_cast<size_t>((h * p.queries + i) * dk)];
      std::vector<double> score(static_cast<size_t>(row.tokens), -HUGE_VAL), weight(score.size());
      double top = -HUGE_VAL, worst = 0, sum = 0;
      for (int64_t t = 0; t < row.tokens; ++t) {
        if (!p.sees(row, i, t)) continue;
        double dot = 0, size = 0, error = 0;
        const size_t at = row.k.code_at(kv, t, 0);
        for (int64_t d0 = 0, d1; d0 < dk; d0 = d1) {
          d1 = folded ? dk : std::min(dk, d0 + p.k.group_size);
          double most = 0, codes = 0;
          for (int64_t d = d0; d < d1; ++d) {
            const size_t j = at + static_cast<size_t>(d);
            const double x = static_cast<double>(q[d]) * static_cast<double>(p.scale);
            dot += x * k.value[j];
            size += std::fabs(x) * k.size[j];
            most = std::max(most, std::fabs(x) * (folded ? k.scale[j] : 1));
            codes += k.code[j] * (folded ? 1 : k.scale[j]);
          }
          error += most / lk / 2 * codes;
        }
        worst = std::max(worst, error + kFloat * size);
        if (p.softcap > 0) dot = static_cast<double>(p.softcap) * std::tanh(dot / static_cast<double>(p.softcap));
        score[static_cast<size_t>(t)] = dot;
        top = std::max(top, dot);
      }
      for (size_t t = 0; t < score.size() && top > -HUGE_VAL; ++t) sum += weight[t] = std::exp(score[t] - top);
      const double stretch = std::exp(2 * worst);
      e.lse.push_back(top > -HUGE_VAL ? top + std::log(sum) : -HUGE_VAL);
      e.lse_bound.push_back(worst + 1e-5 * (1 + std::fabs(top)));
      for (int64_t d = 0; d < dv; ++d) {
        double o = 0, size = 0, lost = 0;
        for (int64_t t0 = 0; t0 < row.tokens && sum > 0; t0 += 64) {
          double most = 0, codes = 0;
          for (int64_t t = t0; t < std::min(row.tokens, t0 + 64); ++t) {
            const double w = weight[static_cast<size_t>(t)] / sum;
            if (w <= 0) continue;
            const size_t j = row.v.code_at(kv, t, d);
            o += w * v.value[j];
            size += w * v.size[j];
            codes += v.code[j];
            most = std::max(most, w * v.scale[j]);
          }
          lost += most * stretch / lv / 2 * codes;
        }
        e.out.push_back(o);
        e.out_bound.push_back((stretch - 1 + 10 * kFloat) * size + lost);
      }
    }
  }
  return e;
}

// Pages of one problem in memory that holds nothing else; cut(i): tokens of a row's page i, a multiple of both blocks.
class PackedPages {
 public:
  template <class Cut>
  PackedPages(const PackedProblem& p, Cut cut) : problem_(p) {
    int64_t widest = 0;
    for (const PackedRow& row : p.rows) {
      for (int64_t t = 0, i = 0; t < row.tokens; ++i) {
        const int64_t n = std::min<int64_t>(row.tokens - t, cut(i));
        cuts_.push_back({&row, t, n});
        widest = std::max(widest, n);
        t += n;
      }
    }
    describe(p.k, widest, k_parts_);
    describe(p.v, widest, v_parts_);
    for (const Piece& piece : cuts_) {
      Reachable<void*> pointers(6);
      store(piece, piece.row->k, k_parts_, pointers.data());
      store(piece, piece.row->v, v_parts_, pointers.data() + p.k.parts());
      pages_.push_back({piece.row - p.rows.data(), piece.row->position + piece.token, piece.count, pointers.data()});
      pointers_.push_back(std::move(pointers));
    }
  }
  kvp_qattend_args args(const kvp_tensor* q, const int64_t* q_position, void* workspace) const {
    kvp_qattend_args a = {};
    a.struct_size = sizeof a;
    a.q = q, a.k_parts = k_parts_, a.v_parts = v_parts_;
    a.n_k_parts = problem_.k.parts(), a.n_v_parts = problem_.v.parts();
    a.pages = pages_.data(), a.n_pages = static_cast<int64_t>(pages_.size());
    a.q_position = q_position, a.workspace = workspace;
    a.window = problem_.window, a.chunk = problem_.chunk, a.scale = problem_.scale, a.softcap = problem_.softcap;
    return a;
  }
  // For a device: its pages and parts lie in memory of their own, and what the host's name as parts is nowhere.
  kvp_qattend_args device_args(const kvp_tensor* q, const int64_t* q_position, void* workspace) {
    device_pages_.assign(pages_.begin(), pages_.end());
    host_pages_ = pages_;
    for (kvp_qpage& page : host_pages_) page.parts = nowhere_.data();
    kvp_qattend_args a = args(q, q_position, workspace);
    a.pages = host_pages_.data();
    a.device_pages = device_pages_.data();
    return a;
  }

 private:
  struct Piece {
    const PackedRow* row;
    int64_t token, count;
  };
  void describe(const sdk::PackedForm& f, int64_t tokens, kvp_qpart* parts) {
    const int64_t blocks = std::max<int64_t>(1, tokens / f.token_block());
    const int32_t roles[3] = {KVP_PART_DATA, KVP_PART_SCALE, KVP_PART_ZERO};
    for (int i = 0; i < 3; ++i) {
      parts[i] = {roles[i], 0,
                  tensor_of(nullptr, i == 0 ? kvp_dtype{KVP_DTYPE_UINT, 8, 1} : f.scale_dtype,
                            {1, problem_.kv_heads, blocks, i == 0 ? f.data_bytes() : f.groups()})};
    }
  }
  void store(const Piece& piece, const PackedTensor& x, const kvp_qpart* parts, void** to) {
    const int64_t block = x.form.token_block(), groups = x.form.groups();
    for (int i = 0; i < 3; ++i) {
      const int64_t size = parts[i].t.dtype_bits / 8;
      memory_.emplace_back(static_cast<size_t>(problem_.kv_heads * parts[i].t.strides[1] * size), std::byte{0x7f});
      to[i] = memory_.back().data();
      for (int64_t h = 0; h < problem_.kv_heads; ++h) {
        for (int64_t b = 0; b < piece.count / block; ++b) {
          std::byte* at = memory_.back().data() + (h * parts[i].t.strides[1] + b * parts[i].t.strides[2]) * size;
          if (i == 0) {
            sdk::pack_block(x.form, &x.codes[x.code_at(h, piece.token + b * block, 0)], at);
            continue;
          }
          const auto& from = i == 1 ? x.scale : x.offset;
          const int64_t first = (h * (x.tokens / block) + piece.token / block + b) * groups;
          for (int64_t g = 0; g < groups; ++g) {
            encode_element(x.form.scale_dtype, from[static_cast<size_t>(first + g)], at + g * size);
          }
        }
      }
    }
  }

  const PackedProblem& problem_;
  std::vector<Piece> cuts_;
  kvp_qpart k_parts_[3], v_parts_[3];
  std::vector<Reachable<std::byte>> memory_;
  std::vector<Reachable<void*>> pointers_;
  std::vector<kvp_qpage> pages_, host_pages_;
  Reachable<kvp_qpage> device_pages_;
  std::vector<void*> nowhere_ = std::vector<void*>(6, reinterpret_cast<void*>(uintptr_t{0x40}));
};

}  // namespace kvplug::test
