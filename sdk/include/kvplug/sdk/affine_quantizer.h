// SPDX-License-Identifier: Apache-2.0
// AffineQuantizer: what quantizers of the form x = code * scale + offset share when tokens are packed in blocks: plan,
// checks, the walk over rows, heads and blocks on the host's threads, attention over what was packed. A plugin adds its
// options and its kernels (affine_kernels.h). Immutable, thread-safe; same bits whatever the number of workers.
#pragma once

#include <kvplug/sdk/affine_device.h>
#include <kvplug/sdk/affine_kernels.h>
#include <kvplug/sdk/tensor.h>

#include <initializer_list>
#include <string>

namespace kvplug::sdk {

class AffineQuantizer {
 public:
  // Throws INVALID_ARGUMENT for what no block can be made of; q_group_size names the group size in messages.
  // device: the kernels for a device_type that is not the CPU; affine_refusal() has nothing against it.
  AffineQuantizer(const PackedForm& form, const AffineKernels& kernels, int32_t device_type,
                  const AffineDevice* device);

  const PackedForm& form() const noexcept { return form_; }

  void describe(kvp_qspec& out) const;
  void plan(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan& out) const;
  void quantize(const kvp_call& call, const kvp_tensor& in, const kvp_qpart* parts, uint32_t n_parts,
                void* workspace) const;
  void dequantize(const kvp_call& call, const kvp_qpart* parts, uint32_t n_parts, kvp_tensor& out) const;
  // Attention over packed tokens (packed_attention.h); throws UNSUPPORTED with the reason.
  uint64_t attend_probe(const AffineQuantizer& values, const kvp_qattend_desc& desc) const;
  void attend(const AffineQuantizer& values, const kvp_call& call, const kvp_qattend_args& args, kvp_tensor& out,
              kvp_tensor& lse) const;

 private:
  PackedForm form_;
  const AffineKernels& kernels_;
  int32_t device_type_;
  const AffineDevice* device_;  // NULL: the CPU
};

// Why a quantizer does not work on devices of a type, `device` being its kernels for CUDA; empty if it does.
std::string affine_refusal(const char* plugin, int32_t device_type, const AffineDevice* device);

// The options of an affine quantizer, in Hugging Face's words and with its defaults.
struct AffineOptions {
  int64_t nbits = 4;
  int64_t axis = 0;
  int64_t group_size = 64;  // 0: the whole axis
  bool strict = false;      // hf_compat = "strict"
};
// From the options of `create`, or from its spec, where it names one: tokens_axis and head_axis are the words for
// groups along TOKENS and HEAD_DIM. Then the checks in Hugging Face's order: nbits and axis, one of those given, group
// size. Throws INVALID_ARGUMENT, naming `plugin`.
AffineOptions affine_options(const char* plugin, const kvp_qcreate& create, std::initializer_list<int64_t> nbits,
                             std::initializer_list<int64_t> nbits_strict, int64_t tokens_axis, int64_t head_axis);

// Range i of what a plugin that packs `nbits` serves: types times bits times group dims; strict ones behind.
uint32_t affine_spec_count(std::initializer_list<int64_t> nbits, std::initializer_list<int64_t> nbits_strict) noexcept;
void affine_spec_range(uint32_t i, std::initializer_list<int64_t> nbits, std::initializer_list<int64_t> nbits_strict,
                       kvp_qspec& low, kvp_qspec& high);

// What blocks are made of. Throws UNSUPPORTED for types and dims that are not served.
PackedForm packed_form(const kvp_qcreate& create, const AffineOptions& options, int32_t group_dim);
// The same answer for strict instances.
void describe_affine(kvp_dtype dtype, const AffineOptions& options, int32_t group_dim, kvp_qspec& out);

// Throws DEVICE for an error number of the call's device that is not 0.
void check_device(const kvp_call& call, int error);
// Attention over packed tokens (packed_attention.h) where keys and values are: probe throws UNSUPPORTED with the
// reason.
uint64_t packed_probe(const PackedForm& k, int32_t k_device, const PackedForm& v, int32_t v_device,
                      const kvp_qattend_desc& desc);
void packed_call(const PackedForm& k, const PackedForm& v, int32_t device_type, const kvp_call& call,
                 const kvp_qattend_args& args, kvp_tensor& out, kvp_tensor& lse);

// A tensor of a plan.
kvp_qpart planned_part(int32_t role, kvp_dtype dtype, std::initializer_list<int64_t> shape, uint32_t flags = 0);
// Throws INVALID_ARGUMENT unless `parts` are the planned ones, with data. Parts of two axes (strict) must be dense.
void check_parts(const kvp_qplan& plan, const kvp_qpart* parts, uint32_t n_parts);

}  // namespace kvplug::sdk
