// SPDX-License-Identifier: Apache-2.0
// packed_attend(): checks the call and hands it to the driver of attend(), or to a device, as rows whose position 0 is
// their first packed token.
#include <kvplug/sdk/packed_attention.h>

#include "../kernels/packed_job.h"

namespace kvplug::sdk {
namespace {

constexpr int64_t kMostDims = 512;  // 16-bit factors times 8-bit codes fill 32 bits

bool same(kvp_dtype a, kvp_dtype b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }
kvp_dtype dtype_of(const kvp_tensor& t) { return {t.dtype_code, t.dtype_bits, t.dtype_lanes}; }

bool is_float(kvp_dtype t) {
  return t.lanes == 1 && ((t.code == KVP_DTYPE_FLOAT && (t.bits == 32 || t.bits == 16)) ||
                          (t.code == KVP_DTYPE_BFLOAT && t.bits == 16));
}

const char* form_refusal(const PackedForm& form) {
  if (form.bits != 1 && form.bits != 2 && form.bits != 3 && form.bits != 4 && form.bits != 8) {
    return "packed attention reads codes of 1, 2, 3, 4 and 8 bits";
  }
  if (form.head_dim < 1 || form.head_dim > kMostDims) return "packed attention serves head dimensions up to 512";
  if (!is_float(form.scale_dtype)) return "packed attention reads scales of float32, float16 and bfloat16";
  if (form.float8()) {
    const bool known = form.format == KVP_FORMAT_FP8_E4M3 || form.format == KVP_FORMAT_FP8_E5M2;
    if (!known || form.bits != 8) return "packed attention reads the 8-bit floats e4m3 and e5m2";
    return form.group_dim == KVP_GROUP_HEAD_DIM && form.group_size >= form.head_dim
               ? nullptr
               : "packed attention serves 8-bit floats with one scale for a token and head";
  }
  if (form.group_size < 1) return "packed attention needs groups of at least one element";
  if (form.group_dim == KVP_GROUP_TOKENS) {
    return form.group_size % kTileTokens == 0
               ? nullptr
               : "packed attention serves groups along tokens whose size is a multiple of 16";
  }
  if (form.group_dim != KVP_GROUP_HEAD_DIM) return "packed attention serves groups along tokens or the head dimension";
  return form.group_size % 16 == 0 || form.group_size >= form.head_dim
             ? nullptr
             : "packed attention serves groups along the head dimension whose size is a multiple of 16";
}

PackedSide side_of(const PackedForm& form, int64_t first_part) {
  PackedSide side = {};
  side.form = form;
  side.block = form.token_block();
  side.tile_bytes = form.tile_bytes();
  side.high_plane = form.high_plane();
  side.groups = form.group_dim == KVP_GROUP_TOKENS ? 1 : (form.head_dim + form.group_size - 1) / form.group_size;
  side.first_part = first_part;
  return side;
}

// Takes the strides of the planned parts; false if they contradict the form.
bool take_parts(const kvp_qpart* parts, uint32_t n, int64_t kv_heads, PackedSide* side) {
  if (n != side->form.parts() || parts == nullptr) return false;
  const int32_t roles[3] = {KVP_PART_DATA, KVP_PART_SCALE, KVP_PART_ZERO};
  const int64_t sizes[3] = {side->form.data_bytes(), side->form.groups(), side->form.groups()};
  for (uint32_t i = 0; i < n; ++i) {
    const kvp_tensor& t = parts[i].t;
    const kvp_dtype type = i == 0 ? kvp_dtype{KVP_DTYPE_UINT, 8, 1} : side->form.scale_dtype;
    if (parts[i].role != roles[i] || (parts[i].flags & KVP_QPART_SHARED) != 0) return false;
    if (t.ndim != 4 || t.shape[1] != kv_heads || t.shape[3] != sizes[i] || t.strides[3] != 1) return false;
    if (!same(dtype_of(t), type)) return false;
    side->head_stride[i] = t.strides[1] * (type.bits / 8);
    side->block_stride[i] = t.strides[2] * (type.bits / 8);
  }
  return true;
}

// The caller's workspace: rows, where their pages begin, scratch of the driver.
struct Workspace {
  int64_t rows, first_page;  // bytes
  explicit Workspace(int64_t batch)
      : rows(round_up(batch * static_cast<int64_t>(sizeof(AttendRow)), 64)),
        first_page(round_up((batch + 1) * static_cast<int64_t>(sizeof(int64_t)), 64)) {}
};

// Row b of the call from its pages, the next one being *page; false if these are out of order, torn or newer than a
// query.
bool take_row(const kvp_qattend_args& args, const PackedCall& call, int64_t b, int64_t queries, int64_t* page,
              AttendRow* to) {
  AttendRow row = {};
  row.q_position = args.q_position[b];
  row.q_count = queries;
  for (; *page < args.n_pages && args.pages[*page].row == b; ++*page) {
    const kvp_qpage& p = args.pages[*page];
    if (p.count <= 0 || p.count > INT32_MAX || p.count % call.k.block != 0 || p.count % call.v.block != 0) return false;
    if (p.parts == nullptr) return false;
    if (row.kv_end == 0) row.origin = p.position;
    if (p.position < 0 || p.position != row.origin + row.kv_end) return false;
    row.kv_end += p.count;
  }
  if (row.kv_end > 0) {
    // Position 0 is the first packed token; the queries from the last one on are no padding.
    if (row.q_position < row.origin + row.kv_end - 1) return false;
    row.q_position -= row.origin;
  }
  *to = row;
  return true;
}

// Of a call that makes sense: where its parts lie, its shape. batch 0: nothing to do.
kvp_status take_call(const PackedForm& k, const PackedForm& v, const kvp_qattend_args& args, PackedCall* call,
                     AttendShape* shape) {
  if (args.q == nullptr || args.q->ndim != 4 || args.q_position == nullptr || args.workspace == nullptr ||
      args.k_parts == nullptr) {
    return KVP_INVALID_ARGUMENT;
  }
  const kvp_tensor& q = *args.q;
  const int64_t kv_heads = args.k_parts[0].t.shape[1];
  if (q.shape[0] == 0 || q.shape[2] == 0) return KVP_OK;
  if (form_refusal(k) != nullptr || form_refusal(v) != nullptr) return KVP_UNSUPPORTED;
  if (kv_heads < 1 || q.shape[1] < 1 || q.shape[1] % kv_heads != 0 || !is_float(dtype_of(q))) {
    return KVP_INVALID_ARGUMENT;
  }
  *call = {side_of(k, 0), side_of(v, k.parts()), &args, nullptr};
  if (!take_parts(args.k_parts, args.n_k_parts, kv_heads, &call->k)) return KVP_INVALID_ARGUMENT;
  if (!take_parts(args.v_parts, args.n_v_parts, kv_heads, &call->v)) return KVP_INVALID_ARGUMENT;
  if (args.n_pages < 0 || (args.n_pages > 0 && args.pages == nullptr)) return KVP_INVALID_ARGUMENT;
  *shape = {q.shape[0], q.shape[1], kv_heads, q.shape[2], k.head_dim, v.head_dim, dtype_of(q)};
  return KVP_OK;
}

AttendCall call_of(const kvp_qattend_args& args, kvp_tensor& out, kvp_tensor& lse) {
  AttendCall call = {};
  call.q = args.q;
  call.out = &out;
  call.lse = &lse;
  call.window = args.window;
  call.chunk = args.chunk;
  call.scale = args.scale;
  call.softcap = args.softcap;
  return call;
}

// On a device: rows, then partial results.
int64_t device_rows_bytes(int64_t batch) { return round_up(batch * static_cast<int64_t>(sizeof(DeviceRow)), 64); }

AttendJob job_of(const AttendShape& shape, const PackedCall& call) {
  AttendJob job = attend_job(shape);
  job.partition = kPackedPartition;
  job.packed = &call;
  return job;
}

}  // namespace

const char* packed_attend_refusal(const PackedForm& k, const PackedForm& v, const kvp_qattend_desc& desc) noexcept {
  if (k.role != KVP_ROLE_KEY || v.role != KVP_ROLE_VALUE) return "packed attention needs a key and a value quantizer";
  if (const char* why = form_refusal(k)) return why;
  if (const char* why = form_refusal(v)) return why;
  if (k.head_dim != desc.key_dim || v.head_dim != desc.value_dim) {
    return "the quantizers were made for other head dimensions than the attention has";
  }
  if (desc.kv_heads < 1 || desc.q_heads < 1 || desc.q_heads % desc.kv_heads != 0) {
    return "packed attention needs query heads that are a multiple of the K/V heads";
  }
  if (!is_float(desc.q_dtype)) return "packed attention takes queries of float32, float16 and bfloat16";
  if (desc.device_type != KVP_DEVICE_CPU) return "packed attention runs on the CPU";
  return nullptr;
}

uint64_t packed_attend_workspace(const PackedForm& k, const PackedForm& v, const kvp_qattend_desc& desc,
                                 int32_t workers) noexcept {
  const PackedCall call = {side_of(k, 0), side_of(v, k.parts()), nullptr, nullptr};
  const AttendShape shape = {desc.max_batch, desc.q_heads,   desc.kv_heads, desc.max_query,
                             desc.key_dim,   desc.value_dim, desc.q_dtype};
  const Workspace parts(desc.max_batch);
  return static_cast<uint64_t>(parts.rows + parts.first_page) + attend_job_scratch(job_of(shape, call), workers);
}

kvp_status packed_attend(const PackedForm& k, const PackedForm& v, const kvp_qattend_args& args,
                         const kvp_host_parallel* parallel, kvp_tensor& out, kvp_tensor& lse) noexcept {
  PackedCall call = {};
  AttendShape shape = {};
  const kvp_status status = take_call(k, v, args, &call, &shape);
  if (status != KVP_OK || shape.batch == 0) return status;

  const Workspace parts(shape.batch);
  char* at = static_cast<char*>(args.workspace);
  AttendRow* rows = reinterpret_cast<AttendRow*>(at);
  int64_t* first_page = reinterpret_cast<int64_t*>(at + parts.rows);
  call.first_page = first_page;
  int64_t page = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    first_page[b] = page;
    if (!take_row(args, call, b, shape.max_query, &page, &rows[b])) return KVP_INVALID_ARGUMENT;
  }
  first_page[shape.batch] = page;
  if (page != args.n_pages) return KVP_INVALID_ARGUMENT;

  AttendCall run = call_of(args, out, lse);
  run.rows = rows;
  const AttendJob job = job_of(shape, call);
  const int32_t workers = parallel != nullptr ? parallel->workers(parallel->ctx) : 1;
  return attend_run(job, run, parallel, at + parts.rows + parts.first_page, attend_job_scratch(job, workers));
}

uint64_t packed_attend_workspace(const PackedDevice& device, const kvp_qattend_desc& desc) noexcept {
  const AttendShape shape = {desc.max_batch, desc.q_heads,   desc.kv_heads, desc.max_query,
                             desc.key_dim,   desc.value_dim, desc.q_dtype};
  return static_cast<uint64_t>(device_rows_bytes(desc.max_batch)) + device.partial_bytes(shape);
}

kvp_status packed_attend(const PackedForm& k, const PackedForm& v, const kvp_qattend_args& args,
                         const PackedDevice& device, const kvp_call& where, kvp_tensor& out, kvp_tensor& lse,
                         int* error) noexcept {
  PackedCall call = {};
  AttendShape shape = {};
  *error = 0;
  const kvp_status status = take_call(k, v, args, &call, &shape);
  if (status != KVP_OK || shape.batch == 0) return status;
  if (args.n_pages > 0 && args.device_pages == nullptr) return KVP_INVALID_ARGUMENT;
  DeviceRow* const rows = static_cast<DeviceRow*>(args.workspace);
  int64_t page = 0, longest = 0;
  bool right = true;
  const auto row_at = [&](int64_t b) {
    const int64_t first = page;
    AttendRow row = {};
    right = right && take_row(args, call, b, shape.max_query, &page, &row);
    longest = greater(longest, row.kv_end);
    return DeviceRow{first, page - first, 0, row.kv_end, row.q_position, row.q_count, 0, row.origin};
  };
  upload_rows(rows, shape.batch, row_at, [&](void* to, const void* from, size_t bytes) {
    if (right && *error == 0) *error = device.upload(where.device_id, where.stream, to, from, bytes);
  });
  if (!right || page != args.n_pages) return KVP_INVALID_ARGUMENT;
  if (*error == 0) {
    *error = device.attend(where.device_id, where.stream, shape, call_of(args, out, lse), call, rows, longest,
                           static_cast<char*>(args.workspace) + device_rows_bytes(shape.batch));
  }
  return *error == 0 ? KVP_OK : KVP_DEVICE;
}

}  // namespace kvplug::sdk
