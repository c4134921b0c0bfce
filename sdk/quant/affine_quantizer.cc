// SPDX-License-Identifier: Apache-2.0
#include <kvplug/sdk/affine_quantizer.h>
#include <kvplug/sdk/host.h>
#include <kvplug/sdk/packed_attention.h>

namespace kvplug::sdk {
namespace {

constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxBlock = 65536;  // tokens
constexpr kvp_dtype kBytes{KVP_DTYPE_UINT, 8, 1};

int64_t round_up(int64_t n) { return (n + 63) / 64 * 64; }
// Of one worker: values of 16 groups, codes of a block.
int64_t panel_bytes(const PackedForm& form) { return round_up(affine_panel_floats(form) * 4); }
int64_t work_bytes(const PackedForm& form) { return panel_bytes(form) + round_up(form.token_block() * form.head_dim); }

}  // namespace

int simd_level() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return 2;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

PackedForm packed_form(const kvp_qcreate& create, const AffineOptions& options, int32_t group_dim) {
  if (!is_plain_float(create.dtype)) {
    fail(KVP_UNSUPPORTED, "values of ", name_of(create.dtype), "; float32, float16 and bfloat16 are quantized");
  }
  if (create.head_dim < 1 || create.head_dim > kMaxHeadDim) {
    fail(KVP_UNSUPPORTED, "head_dim ", create.head_dim, "; 1 to ", kMaxHeadDim, " are quantized");
  }
  PackedForm form;
  form.role = create.role;
  form.bits = static_cast<int32_t>(options.nbits);
  form.group_dim = group_dim;
  form.group_size = options.group_size == 0 ? create.head_dim : options.group_size;
  form.head_dim = create.head_dim;
  form.scale_dtype = create.dtype;
  return form;
}

std::string affine_refusal(const char* plugin, int32_t device_type, const AffineDevice* device) {
  if (device_type == KVP_DEVICE_CPU || (device_type == KVP_DEVICE_CUDA && device != nullptr)) return "";
  if (device_type == KVP_DEVICE_CUDA) {
    return std::string(plugin) + " was built without its CUDA kernels: build kvplug with KVPLUG_WITH_CUDA=ON, or " +
           "compute on the CPU";
  }
  return std::string(plugin) + " has no kernels for devices of type " + std::to_string(device_type) +
         "; it packs on the CPU and with CUDA";
}

AffineQuantizer::AffineQuantizer(const PackedForm& form, const AffineKernels& kernels, int32_t device_type,
                                 const AffineDevice* device)
    : form_(form),
      kernels_(kernels),
      device_type_(device_type),
      device_(device_type == KVP_DEVICE_CPU ? nullptr : device) {
  if (form_.group_dim == KVP_GROUP_HEAD_DIM && form_.group_size > form_.head_dim) form_.group_size = form_.head_dim;
  if (form_.group_size > kMaxBlock || form_.token_block() > kMaxBlock) {
    fail(KVP_INVALID_ARGUMENT, "option 'q_group_size' is ", form_.group_size, ": blocks would be ", form_.token_block(),
         " tokens long; expected at most ", kMaxBlock, ", so a smaller group or a multiple of ", kTileTokens);
  }
}

void AffineQuantizer::describe(kvp_qspec& out) const {
  describe_affine(form_.scale_dtype, {form_.bits, 0, form_.group_size, false}, form_.group_dim, out);
}

void AffineQuantizer::plan(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan& out) const {
  const int64_t block = form_.token_block();
  if (head_dim != form_.head_dim) {
    fail(KVP_INVALID_ARGUMENT, "plan for head_dim ", head_dim, "; created for ", form_.head_dim);
  }
  if (tokens % block != 0) {
    fail(KVP_INVALID_ARGUMENT, "plan for ", tokens, " tokens; expected whole blocks of ", block);
  }
  const int64_t blocks = tokens / block;
  out.token_block = block;
  out.workspace_bytes =
      static_cast<uint64_t>(device_ != nullptr ? device_->workspace_bytes(form_, batch * kv_heads * blocks)
                                               : worker_count(host_parallel()) * work_bytes(form_));
  out.bits_per_element =
      8.0 * static_cast<double>(form_.data_bytes() + 2 * form_.groups() * element_bytes(form_.scale_dtype)) /
      static_cast<double>(block * head_dim);
  out.n_parts = 3;
  out.parts[0] = planned_part(KVP_PART_DATA, kBytes, {batch, kv_heads, blocks, form_.data_bytes()});
  out.parts[1] = planned_part(KVP_PART_SCALE, form_.scale_dtype, {batch, kv_heads, blocks, form_.groups()});
  out.parts[2] = planned_part(KVP_PART_ZERO, form_.scale_dtype, {batch, kv_heads, blocks, form_.groups()});
  for (kvp_qpart& part : out.parts) part.t.device_type = device_type_;
}

void check_device(const kvp_call& call, int error) {
  if (error == 0) return;
  fail(KVP_DEVICE, "device ", call.device_id, " reported error ", error, ": ", cuda_packed_device()->error_text(error));
}

void AffineQuantizer::quantize(const kvp_call& call, const kvp_tensor& in, const kvp_qpart* parts, uint32_t n_parts,
                               void* workspace) const {
  check_tensor("the tensor to quantize", &in, form_.scale_dtype, {-1, -1, -1, form_.head_dim}, device_type_);
  const int64_t batch = in.shape[0], heads = in.shape[1], block = form_.token_block();
  kvp_qplan plan{};
  this->plan(batch, heads, in.shape[2], form_.head_dim, plan);
  check_parts(plan, parts, n_parts);
  const int64_t blocks = in.shape[2] / block, n = batch * heads * blocks;
  if (n == 0) return;
  if (workspace == nullptr) fail(KVP_INVALID_ARGUMENT, "quantize without a workspace");
  if (device_ != nullptr) {
    return check_device(call, device_->quantize(call.device_id, call.stream, form_, in, parts, workspace));
  }

  struct Job {
    const AffineQuantizer& self;
    const kvp_tensor& in;
    const kvp_qpart* parts;
    std::byte* work;
    int64_t heads, blocks;
  } job{*this, in, parts, static_cast<std::byte*>(workspace), heads, blocks};
  const auto piece = [](void* arg, int64_t begin, int64_t end, int32_t worker) {
    const Job& j = *static_cast<const Job*>(arg);
    const PackedForm& form = j.self.form_;
    std::byte* work = j.work + worker * work_bytes(form);
    auto* codes = reinterpret_cast<uint8_t*>(work + panel_bytes(form));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / (j.heads * j.blocks), h = i / j.blocks % j.heads, k = i % j.blocks;
      j.self.kernels_.quantize(form, at(j.in, b, h, k * form.token_block()), j.in.strides[2], at(j.parts[1].t, b, h, k),
                               at(j.parts[2].t, b, h, k), codes, reinterpret_cast<float*>(work));
      pack_block(form, codes, at(j.parts[0].t, b, h, k));
    }
  };
  const kvp_host_parallel* parallel = host_parallel();
  if (parallel == nullptr || n == 1) {
    piece(&job, 0, n, 0);
  } else if (const kvp_status status = parallel->parallel_for(parallel->ctx, n, 1, piece, &job); status != KVP_OK) {
    fail(status, "the host's parallel_for failed");
  }
}

void AffineQuantizer::dequantize(const kvp_call& call, const kvp_qpart* parts, uint32_t n_parts,
                                 kvp_tensor& out) const {
  if (!is_plain_float(dtype_of(out))) fail(KVP_INVALID_ARGUMENT, "dequantize into ", name_of(dtype_of(out)));
  check_tensor("the tensor to dequantize into", &out, dtype_of(out), {-1, -1, -1, form_.head_dim}, device_type_);
  const int64_t batch = out.shape[0], heads = out.shape[1], block = form_.token_block();
  kvp_qplan plan{};
  this->plan(batch, heads, out.shape[2], form_.head_dim, plan);
  check_parts(plan, parts, n_parts);
  if (batch * heads * out.shape[2] == 0) return;
  if (device_ != nullptr)
    return check_device(call, device_->dequantize(call.device_id, call.stream, form_, parts, out));
  const int64_t tiles = out.shape[2] / kTileTokens, per = block / kTileTokens;
  parallel_for(host_parallel(), batch * heads * tiles, 16, [&](int64_t begin, int64_t end) {
    uint8_t codes[kTileTokens * kMaxHeadDim];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / (heads * tiles), h = i / tiles % heads, tile = i % tiles, k = tile / per,
                    in_block = tile % per;
      unpack_tile(form_, at(parts[0].t, b, h, k) + in_block * form_.tile_bytes(), codes);
      kernels_.dequantize(form_, in_block * kTileTokens, codes, at(parts[1].t, b, h, k), at(parts[2].t, b, h, k),
                          at(out, b, h, tile * kTileTokens), dtype_of(out), out.strides[2]);
    }
  });
}

uint64_t AffineQuantizer::attend_probe(const AffineQuantizer& values, const kvp_qattend_desc& desc) const {
  return packed_probe(form_, device_type_, values.form_, values.device_type_, desc);
}

void AffineQuantizer::attend(const AffineQuantizer& values, const kvp_call& call, const kvp_qattend_args& args,
                             kvp_tensor& out, kvp_tensor& lse) const {
  packed_call(form_, values.form_, device_type_, call, args, out, lse);
}

uint64_t packed_probe(const PackedForm& k, int32_t k_device, const PackedForm& v, int32_t v_device,
                      const kvp_qattend_desc& desc) {
  if (desc.device_type != k_device || v_device != k_device) {
    fail(KVP_UNSUPPORTED, "attention on a device of type ", desc.device_type, " over keys on one of type ", k_device,
         " and values on one of type ", v_device);
  }
  kvp_qattend_desc here = desc;
  here.device_type = KVP_DEVICE_CPU;  // what is served is the same everywhere
  if (const char* reason = packed_attend_refusal(k, v, here)) fail(KVP_UNSUPPORTED, reason);
  return k_device == KVP_DEVICE_CPU ? packed_attend_workspace(k, v, desc, worker_count(host_parallel()))
                                    : packed_attend_workspace(*cuda_packed_device(), desc);
}

void packed_call(const PackedForm& k, const PackedForm& v, int32_t device_type, const kvp_call& call,
                 const kvp_qattend_args& args, kvp_tensor& out, kvp_tensor& lse) {
  int error = 0;
  const kvp_status status = device_type == KVP_DEVICE_CPU
                                ? packed_attend(k, v, args, host_parallel(), out, lse)
                                : packed_attend(k, v, args, *cuda_packed_device(), call, out, lse, &error);
  check_device(call, error);
  if (status != KVP_OK) fail(status, "tensors or pages that contradict how keys and values are packed");
}

kvp_qpart planned_part(int32_t role, kvp_dtype dtype, std::initializer_list<int64_t> shape, uint32_t flags) {
  kvp_qpart part{};
  part.role = role;
  part.flags = flags;
  kvp_tensor& t = part.t;
  t.device_type = KVP_DEVICE_CPU;
  t.dtype_code = dtype.code;
  t.dtype_bits = dtype.bits;
  t.dtype_lanes = dtype.lanes;
  for (const int64_t size : shape) t.shape[t.ndim++] = size;
  int64_t stride = 1;
  for (int32_t i = t.ndim; i-- > 0; stride *= t.shape[i]) t.strides[i] = stride;
  return part;
}

void check_parts(const kvp_qplan& plan, const kvp_qpart* parts, uint32_t n_parts) {
  if (parts == nullptr || n_parts != plan.n_parts) {
    fail(KVP_INVALID_ARGUMENT, parts == nullptr ? 0 : n_parts, " parts; expected ", plan.n_parts);
  }
  for (uint32_t i = 0; i < n_parts; ++i) {
    const kvp_tensor &want = plan.parts[i].t, &got = parts[i].t;
    const std::string name = "part " + std::to_string(i);
    if (parts[i].role != plan.parts[i].role) {
      fail(KVP_INVALID_ARGUMENT, name, " has role ", parts[i].role, "; expected ", plan.parts[i].role);
    }
    if (want.ndim == 4) {
      check_tensor(name.c_str(), &got, dtype_of(want), {want.shape[0], want.shape[1], want.shape[2], want.shape[3]},
                   want.device_type);
    } else {
      check_tensor(name.c_str(), &got, dtype_of(want), {want.shape[0], want.shape[1]});
      if (want.shape[0] > 1 && got.strides[0] != want.strides[0]) fail(KVP_INVALID_ARGUMENT, name, " is not dense");
    }
  }
}

}  // namespace kvplug::sdk
