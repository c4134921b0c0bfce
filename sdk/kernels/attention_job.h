// SPDX-License-Identifier: Apache-2.0
// What the driver (attention.cc) and the kernels of each SIMD level share: sizes, the checked call, the level's table.
//
// A row of the call that has few queries is "decode": its positions are cut at multiples of kPartition, each
// (row, K/V head, partition) is one work item that leaves a partial result (m, l, acc) and the partials of a unit
// (row, K/V head) are folded in order. All other rows are "prefill": an item is a tile of up to kTileRows vectors q.
// Both see the queries of a row times the query heads of a K/V head as one list of vectors: i * group + g.
#pragma once

#include <kvplug/sdk/attention.h>

namespace kvplug::sdk {

inline constexpr int64_t kPartition = 256;     // tokens
inline constexpr int64_t kDecodeVectors = 16;  // more of them (and more than one query): prefill
inline constexpr int64_t kPanel = 64;          // q vectors whose scores against one block are held at a time
inline constexpr int64_t kTileRows = 256;      // q vectors that share a converted block
inline constexpr int64_t kDimPad = 32;         // dims are padded to two of the widest vectors
inline constexpr int64_t kScoreStride = kPartition + 16;

struct PackedCall;

struct AttendJob {
  AttendShape shape;  // batch and max_query are those of the call
  AttendCall call;
  kvp_tensor bias;  // if call.bias is set: its copy, stride 0 wherever it is broadcast
  int64_t group, key_pad, value_pad;
  int64_t partition;         // tokens of a decode item
  const PackedCall* packed;  // where K and V lie if they are packed (packed_job.h), else NULL
};

// The queries of a row that are not padding: index of the first, how many.
struct QuerySpan {
  int64_t first, count;
};
struct TokenSpan {
  int64_t begin, end;
};

struct KernelLevel {
  const char* name;
  // One partition of a unit into `partial`. work: decode_work_floats.
  void (*decode)(const AttendJob&, int64_t row, int64_t kv_head, int64_t partition, float* partial, float* work);
  // Folds n partials, `stride` floats apart, into `state`, a partial itself.
  void (*fold)(const AttendJob&, int64_t row, float* state, const float* next, int64_t n, int64_t stride);
  // The finished unit: sinks, division, out and lse.
  void (*finish)(const AttendJob&, int64_t row, int64_t kv_head, const float* state);
  // One tile from q vector `first` on. work: prefill_work_floats.
  void (*prefill)(const AttendJob&, int64_t row, int64_t kv_head, int64_t first, float* work);
  // The same for a job with `packed`.
  void (*packed_decode)(const AttendJob&, int64_t row, int64_t kv_head, int64_t partition, float* partial, float* work);
  void (*packed_prefill)(const AttendJob&, int64_t row, int64_t kv_head, int64_t first, float* work);
};

AttendJob attend_job(const AttendShape& shape);
// attend() of a job whose shape was served; scratch: attend_job_scratch.
uint64_t attend_job_scratch(const AttendJob& job, int32_t workers);
kvp_status attend_run(AttendJob job, const AttendCall& call, const kvp_host_parallel* parallel, void* scratch,
                      size_t scratch_bytes);

extern const KernelLevel kScalarLevel;
#if defined(__x86_64__)
extern const KernelLevel kAvx2Level, kAvx512Level, kAvx512VnniLevel;
#endif

// Internal linkage: each target compiles its own copy.
namespace {

inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

inline QuerySpan real_queries(const AttendRow& row) {
  const int64_t first = greater(0, -row.q_position);
  return {first, greater(0, row.q_count - first)};
}

// Every mask but the bias leaves a query one interval of row positions; both ends grow with the query's position.
inline TokenSpan visible(const AttendCall& call, const AttendRow& row, int64_t position) {
  TokenSpan s = {row.kv_begin, row.kv_end};
  if (call.causal) s.end = lesser(s.end, position + 1);
  if (call.window > 0) s.begin = greater(s.begin, position - call.window + 1);
  if (call.chunk > 0) {
    const int64_t start = (position + row.origin) / call.chunk * call.chunk - row.origin;
    s.begin = greater(s.begin, start);
    s.end = lesser(s.end, start + call.chunk);
  }
  s.begin = lesser(s.begin, greater(row.kv_begin, row.kv_end));
  s.end = greater(s.begin, s.end);
  return s;
}

// All that the queries of a row see; the spans move up with the position.
inline TokenSpan visible_to_all(const AttendCall& call, const AttendRow& row, QuerySpan q) {
  const int64_t p = row.q_position + q.first;
  return {visible(call, row, p).begin, visible(call, row, p + q.count - 1).end};
}

// A partial result of n q vectors: m[n], l[n] (padded to a vector each), acc[n][value_pad].
inline int64_t partial_head(int64_t n) { return round_up(n, 16); }
inline int64_t partial_floats(int64_t n, int64_t value_pad) { return 2 * partial_head(n) + n * value_pad; }
inline int64_t decode_work_floats(int64_t n, int64_t key_pad) { return n * (key_pad + kScoreStride); }
inline int64_t prefill_work_floats(int64_t key_pad, int64_t value_pad) {
  return kTileRows * (key_pad + value_pad + 4)            // q transposed, acc, m, l, first and last visible token
         + kBlockTokens * (key_pad + value_pad + kPanel)  // K and V as float32, scores
         + 3 * kPanel;                                    // rescale factors, mask bounds
}

}  // namespace
}  // namespace kvplug::sdk
