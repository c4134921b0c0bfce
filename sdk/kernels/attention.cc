// SPDX-License-Identifier: Apache-2.0
// The driver of attend(): checks the call, cuts it into work items, runs them on the host's threads, folds partials.
//
// Decode items are numbered row by row, K/V head by K/V head, partition by partition, and run in waves of as many items
// as scratch holds partials; a unit that a wave leaves unfinished goes on in a carry. Waves, like threads, change no
// bit: partials are folded one after the other wherever the cut falls.
#include <atomic>
#include <cstring>

#include "packed_job.h"

namespace kvplug::sdk {
namespace {

constexpr int64_t kMaxPartials = 512;
constexpr int64_t kPartialBytes = 4 << 20;      // of scratch, if that many partials would be larger
constexpr int64_t kSerialFoldFloats = 1 << 15;  // fewer are folded by the calling thread

std::atomic<const KernelLevel*> forced_level{nullptr};

bool runs(const KernelLevel& level) {
#if defined(__x86_64__)
  if (&level == &kAvx512VnniLevel) return runs(kAvx512Level) && __builtin_cpu_supports("avx512vnni");
  if (&level == &kAvx512Level) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  if (&level == &kAvx2Level) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return &level == &kScalarLevel;
}

const KernelLevel* const kLevels[] = {  // best first
#if defined(__x86_64__)
    &kAvx512VnniLevel, &kAvx512Level, &kAvx2Level,
#endif
    &kScalarLevel};

const KernelLevel& current_level() {
  static const KernelLevel* const best = [] {
    for (const KernelLevel* level : kLevels) {
      if (runs(*level)) return level;
    }
    return &kScalarLevel;
  }();
  const KernelLevel* forced = forced_level.load(std::memory_order_relaxed);
  return forced != nullptr ? *forced : *best;
}

bool is_float_type(kvp_dtype t) {
  if (t.lanes != 1) return false;
  return (t.code == KVP_DTYPE_FLOAT && (t.bits == 32 || t.bits == 16)) || (t.code == KVP_DTYPE_BFLOAT && t.bits == 16);
}
kvp_dtype dtype_of(const kvp_tensor& t) { return {t.dtype_code, t.dtype_bits, t.dtype_lanes}; }
bool same(kvp_dtype a, kvp_dtype b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }
constexpr kvp_dtype kFloat32 = {KVP_DTYPE_FLOAT, 32, 1};

bool is_decode(const AttendJob& job, int64_t queries) { return queries == 1 || queries * job.group <= kDecodeVectors; }

// Scratch, in bytes; every part begins at a multiple of 64.
struct Layout {
  int64_t index;    // first item of each row, decode and prefill
  int64_t partial;  // one partial
  int64_t work;     // one worker
  int64_t fixed(int64_t workers) const { return index + 2 * partial + workers * work; }
};

Layout layout_of(const AttendJob& job) {
  const int64_t all = greater(job.shape.max_query, 1) * job.group;
  const int64_t vectors = lesser(all, greater(job.group, kDecodeVectors));
  int64_t floats = job.packed != nullptr ? packed_decode_floats(vectors, job.key_pad, job.value_pad)
                                         : decode_work_floats(vectors, job.key_pad);
  if (!is_decode(job, job.shape.max_query)) {
    const int64_t extra = job.packed != nullptr ? packed_prefill_floats(job.key_pad, job.value_pad) : 0;
    floats = greater(floats, prefill_work_floats(job.key_pad, job.value_pad) + extra);
  }
  constexpr int64_t kFloat = sizeof(float);
  return {round_up(2 * (job.shape.batch + 1) * static_cast<int64_t>(sizeof(int64_t)), 64),
          round_up(partial_floats(vectors, job.value_pad) * kFloat, 64), round_up(floats * kFloat, 64)};
}

bool served(const AttendShape& s) {
  return s.batch >= 0 && s.max_query >= 0 && s.kv_heads > 0 && s.q_heads > 0 && s.q_heads % s.kv_heads == 0 &&
         s.key_dim > 0 && s.value_dim > 0 && is_float_type(s.dtype);
}

bool has_shape(const kvp_tensor& t, int64_t batch, int64_t heads, int64_t queries, int64_t dim) {
  return t.ndim == 4 && t.shape[0] == batch && t.shape[1] == heads && t.shape[2] == queries && t.shape[3] == dim &&
         (t.strides[3] == 1 || dim == 1);
}

// Fills in what depends on the tensors of the call; false if they contradict the shape.
bool take_call(const AttendCall& call, AttendJob* job) {
  AttendShape& s = job->shape;
  if (call.q == nullptr || call.out == nullptr || call.q->ndim != 4) return false;
  if (call.q->shape[0] > s.batch || call.q->shape[2] > s.max_query) return false;
  s.batch = call.q->shape[0];
  s.max_query = call.q->shape[2];
  if (!has_shape(*call.q, s.batch, s.q_heads, s.max_query, s.key_dim) || !same(dtype_of(*call.q), s.dtype))
    return false;
  if (!has_shape(*call.out, s.batch, s.q_heads, s.max_query, s.value_dim)) return false;
  if (!same(dtype_of(*call.out), s.dtype) && !same(dtype_of(*call.out), kFloat32)) return false;
  if (call.lse != nullptr) {
    const kvp_tensor& t = *call.lse;
    if (t.ndim != 3 || t.shape[0] != s.batch || t.shape[1] != s.q_heads || t.shape[2] != s.max_query) return false;
    if (!same(dtype_of(t), kFloat32)) return false;
  }
  if (call.sinks != nullptr) {
    if (call.sinks->ndim != 1 || call.sinks->shape[0] != s.q_heads || !same(dtype_of(*call.sinks), kFloat32))
      return false;
  }
  if (call.bias != nullptr) {
    const kvp_tensor& t = *call.bias;
    const int64_t full[3] = {s.batch, s.q_heads, s.max_query};
    if (t.ndim != 4 || !same(dtype_of(t), kFloat32)) return false;
    job->bias = t;
    for (int i = 0; i < 4; ++i) {
      if (t.shape[i] == 1) job->bias.strides[i] = 0;
      if (i < 3 && t.shape[i] != 1 && t.shape[i] != full[i]) return false;
    }
  }
  if (s.batch > 0 && call.rows == nullptr) return false;
  job->call = call;
  return true;
}

struct Item {
  int64_t row, kv_head, part, parts;
};

struct Run {
  AttendJob job;
  const KernelLevel* level;
  int64_t *first_decode, *first_prefill;  // [batch + 1]
  float *carry[2], *partials, *work;
  int64_t partial_stride, work_stride;  // floats
  int64_t wave_begin, wave_end;
  int carry_in;

  float* partial(int64_t item) const { return partials + (item - wave_begin) * partial_stride; }

  Item find(const int64_t* first, int64_t item) const {
    int64_t low = 0, high = job.shape.batch;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first[middle] <= item ? low : high) = middle;
    }
    const int64_t parts = (first[low + 1] - first[low]) / job.shape.kv_heads, at = item - first[low];
    return {low, at / parts, at % parts, parts};
  }
};

void run_decode(void* arg, int64_t begin, int64_t end, int32_t worker) {
  const Run& run = *static_cast<const Run*>(arg);
  for (int64_t i = run.wave_begin + begin; i < run.wave_begin + end; ++i) {
    const Item item = run.find(run.first_decode, i);
    const AttendRow& row = run.job.call.rows[item.row];
    const int64_t first = visible_to_all(run.job.call, row, real_queries(row)).begin / run.job.partition;
    const auto decode = run.job.packed != nullptr ? run.level->packed_decode : run.level->decode;
    decode(run.job, item.row, item.kv_head, first + item.part, run.partial(i), run.work + worker * run.work_stride);
  }
}

void run_fold(void* arg, int64_t begin, int64_t end, int32_t) {
  const Run& run = *static_cast<const Run*>(arg);
  const int64_t stop = run.wave_begin + end;
  for (int64_t i = run.wave_begin + begin; i < stop;) {
    const Item item = run.find(run.first_decode, i);
    const int64_t left = item.parts - item.part, here = lesser(left, run.wave_end - i);
    const bool carried = item.part != 0 && i == run.wave_begin;
    if (item.part == 0 || carried) {  // the others belong to a unit that begins in another call's range
      float* state = carried ? run.carry[run.carry_in] : run.partial(i);
      const int64_t next = carried ? i : i + 1;
      run.level->fold(run.job, item.row, state, run.partial(next), i + here - next, run.partial_stride);
      if (here == left) {
        run.level->finish(run.job, item.row, item.kv_head, state);
      } else {
        memcpy(run.carry[1 - run.carry_in], state, static_cast<size_t>(run.partial_stride) * sizeof(float));
      }
    }
    i += left;
  }
}

void run_prefill(void* arg, int64_t begin, int64_t end, int32_t worker) {
  const Run& run = *static_cast<const Run*>(arg);
  const auto prefill = run.job.packed != nullptr ? run.level->packed_prefill : run.level->prefill;
  for (int64_t i = begin; i < end; ++i) {
    const Item item = run.find(run.first_prefill, i);
    // Late tiles see more tokens: alternating with early ones, any contiguous share of the items costs about its part.
    const int64_t tile = item.part % 2 == 0 ? item.parts - 1 - item.part / 2 : item.part / 2;
    prefill(run.job, item.row, item.kv_head, tile * kTileRows, run.work + worker * run.work_stride);
  }
}

kvp_status spread(const kvp_host_parallel* parallel, int64_t n, kvp_parallel_fn fn, Run* run) {
  if (n == 0) return KVP_OK;
  if (parallel != nullptr && n > 1) return parallel->parallel_for(parallel->ctx, n, 1, fn, run);
  fn(run, 0, n, 0);
  return KVP_OK;
}

// Padding queries of a row: out 0, lse -inf.
void clear_queries(const AttendJob& job, int64_t b, int64_t begin, int64_t end) {
  const kvp_tensor& out = *job.call.out;
  const int64_t size = out.dtype_bits / 8;
  for (int64_t h = 0; h < job.shape.q_heads; ++h) {
    for (int64_t i = begin; i < end; ++i) {
      char* to = static_cast<char*>(out.data) + (b * out.strides[0] + h * out.strides[1] + i * out.strides[2]) * size;
      memset(to, 0, static_cast<size_t>(job.shape.value_dim * size));
      if (job.call.lse != nullptr) {
        const kvp_tensor& lse = *job.call.lse;
        static_cast<float*>(lse.data)[b * lse.strides[0] + h * lse.strides[1] + i * lse.strides[2]] = -__builtin_inff();
      }
    }
  }
}

// Numbers the items and clears padding.
void index_rows(Run* run) {
  const AttendJob& job = run->job;
  int64_t decode = 0, prefill = 0;
  for (int64_t b = 0; b < job.shape.batch; ++b) {
    run->first_decode[b] = decode;
    run->first_prefill[b] = prefill;
    const AttendRow& row = job.call.rows[b];
    const QuerySpan span = real_queries(row);
    clear_queries(job, b, 0, lesser(span.first, job.shape.max_query));
    clear_queries(job, b, greater(span.first, 0) + span.count, job.shape.max_query);
    if (span.count == 0) continue;
    if (is_decode(job, span.count)) {
      const TokenSpan seen = visible_to_all(job.call, row, span);
      const int64_t parts = (seen.end + job.partition - 1) / job.partition - seen.begin / job.partition;
      decode += job.shape.kv_heads * (seen.end > seen.begin ? parts : 1);
    } else {
      prefill += job.shape.kv_heads * ((span.count * job.group + kTileRows - 1) / kTileRows);
    }
  }
  run->first_decode[job.shape.batch] = decode;
  run->first_prefill[job.shape.batch] = prefill;
}

}  // namespace

AttendJob attend_job(const AttendShape& shape) {
  AttendJob job = {};
  job.shape = shape;
  job.group = shape.q_heads / shape.kv_heads;
  job.key_pad = round_up(shape.key_dim, kDimPad);
  job.value_pad = round_up(shape.value_dim, kDimPad);
  job.partition = kPartition;
  return job;
}

uint64_t attend_job_scratch(const AttendJob& job, int32_t workers) {
  const Layout layout = layout_of(job);
  if (job.packed != nullptr) {  // a smaller call of the same workspace must not want more
    return static_cast<uint64_t>(layout.fixed(greater(workers, 1)) +
                                 greater(kPartialBytes, 4 * greater(workers, 1) * layout.partial));
  }
  const int64_t partials = greater(lesser(kMaxPartials, kPartialBytes / layout.partial), 4 * greater(workers, 1));
  return static_cast<uint64_t>(layout.fixed(greater(workers, 1)) + partials * layout.partial);
}

size_t attend_scratch_bytes(const AttendShape& shape, int32_t workers) {
  return served(shape) ? static_cast<size_t>(attend_job_scratch(attend_job(shape), workers)) : 0;
}

kvp_status attend(const AttendShape& shape, const AttendCall& call, const kvp_host_parallel* parallel, void* scratch,
                  size_t scratch_bytes) {
  if (!served(shape)) return is_float_type(shape.dtype) ? KVP_INVALID_ARGUMENT : KVP_UNSUPPORTED;
  return attend_run(attend_job(shape), call, parallel, scratch, scratch_bytes);
}

kvp_status attend_run(AttendJob job, const AttendCall& call, const kvp_host_parallel* parallel, void* scratch,
                      size_t scratch_bytes) {
  Run run = {};
  run.job = job;
  if (!take_call(call, &run.job)) return KVP_INVALID_ARGUMENT;
  const int64_t batch = run.job.shape.batch;
  if (batch == 0 || run.job.shape.max_query == 0) return KVP_OK;
  for (int64_t b = 0; b < batch; ++b) {
    const AttendRow& row = call.rows[b];
    if (row.q_count < 0 || row.q_count > run.job.shape.max_query || row.kv_begin < 0) return KVP_INVALID_ARGUMENT;
  }

  const Layout layout = layout_of(run.job);
  const int64_t workers = parallel != nullptr ? parallel->workers(parallel->ctx) : 1;
  const int64_t fixed = layout.fixed(workers), size = static_cast<int64_t>(scratch_bytes);
  if (scratch == nullptr || size < fixed + layout.partial) return KVP_INVALID_ARGUMENT;
  run.level = &current_level();
  char* at = static_cast<char*>(scratch);
  run.first_decode = reinterpret_cast<int64_t*>(at);
  run.first_prefill = run.first_decode + batch + 1;
  at += layout.index;
  run.carry[0] = reinterpret_cast<float*>(at);
  run.carry[1] = reinterpret_cast<float*>(at + layout.partial);
  at += 2 * layout.partial;
  run.work = reinterpret_cast<float*>(at);
  at += workers * layout.work;
  run.partials = reinterpret_cast<float*>(at);
  run.partial_stride = layout.partial / static_cast<int64_t>(sizeof(float));
  run.work_stride = layout.work / static_cast<int64_t>(sizeof(float));
  const int64_t wave = lesser(kMaxPartials, (size - fixed) / layout.partial);

  index_rows(&run);
  const int64_t items = run.first_decode[batch];
  for (; run.wave_begin < items; run.wave_begin = run.wave_end) {
    run.wave_end = lesser(items, run.wave_begin + wave);
    const int64_t n = run.wave_end - run.wave_begin;
    kvp_status status = spread(parallel, n, run_decode, &run);
    if (status != KVP_OK) return status;
    status = spread(n * run.partial_stride > kSerialFoldFloats ? parallel : nullptr, n, run_fold, &run);
    if (status != KVP_OK) return status;
    run.carry_in = 1 - run.carry_in;
  }
  return spread(parallel, run.first_prefill[batch], run_prefill, &run);
}

const char* attend_level() { return current_level().name; }

bool set_attend_level(const char* name) {
  if (name == nullptr) {
    forced_level.store(nullptr, std::memory_order_relaxed);
    return true;
  }
  for (const KernelLevel* level : kLevels) {
    if (strcmp(level->name, name) == 0 && runs(*level)) {
      forced_level.store(level, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace kvplug::sdk
