// SPDX-License-Identifier: Apache-2.0
#include "whole_tensor.h"

#include <kvplug/sdk/tensor.h>

#include <algorithm>
#include <cstring>

namespace kvplug::quantized {
namespace {

using sdk::fail;

constexpr int64_t kMostPartBytes = int64_t{1} << 40;

int64_t aligned(int64_t bytes) noexcept { return (bytes + 63) / 64 * 64; }
int64_t up(int64_t n, int64_t to) noexcept { return (n + to - 1) / to * to; }
int64_t element_of(const kvp_tensor& t) noexcept { return t.dtype_bits / 8 * std::max<int64_t>(1, t.dtype_lanes); }
bool is_shared(const kvp_qpart& part) noexcept { return (part.flags & KVP_QPART_SHARED) != 0; }
bool is_scale(const kvp_qpart& part) noexcept { return part.role > KVP_PART_DATA && part.role < KVP_PART_OWN; }

int64_t bytes_of(const kvp_tensor& t) noexcept {
  int64_t bytes = element_of(t);
  for (int32_t i = 0; i < t.ndim; ++i) bytes *= t.shape[i];
  return bytes;
}

size_t size_of(const kvp_tensor& t) noexcept { return static_cast<size_t>(bytes_of(t)); }

// Answers OK, or with the reason in `answer`.
kvp_status ask(const WholeQuantizer& q, int64_t batch, int64_t tokens, kvp_qplan& plan, Answer& answer) {
  plan = {};
  plan.struct_size = sizeof plan;
  const kvp_status status = q.handle.iface->plan(q.handle.self, batch, q.heads, tokens, q.dim, &plan, &answer.err);
  if (status != KVP_OK) return status;
  const auto wrong = [&](const auto&... why) {
    fail(KVP_INVALID_ARGUMENT, "quantizer '", id_of(q.handle), "': ", why...);
  };
  if (plan.token_block != 0) {
    wrong("a token_block of ", plan.token_block, "; hf_compat = \"strict\" packs whole tensors, which is 0");
  }
  if (plan.n_parts < 1 || plan.n_parts > KVP_MAX_PARTS) {
    wrong(plan.n_parts, " parts; expected 1 to ", KVP_MAX_PARTS);
  }
  const bool appending = appends(plan);
  for (uint32_t i = 0; i < plan.n_parts; ++i) {
    kvp_tensor& t = plan.parts[i].t;
    bool sound = t.ndim >= 1 && t.ndim <= KVP_MAX_DIMS && t.dtype_bits % 8 == 0 && element_of(t) >= 1;
    int64_t bytes = 1;
    for (int32_t k = 0; sound && k < t.ndim; ++k) {
      sound = t.shape[k] >= 0 && (t.shape[k] == 0 || bytes <= kMostPartBytes / t.shape[k]);
      bytes *= std::max<int64_t>(1, t.shape[k]);
    }
    if (sound && appending) {
      sound = t.ndim == 4 &&
              (is_shared(plan.parts[i]) ? t.shape[0] == 1
                                        : t.shape[0] == batch && t.shape[1] == q.heads && t.shape[2] == tokens);
    }
    if (!sound) {
      wrong("part ", i, " has shape ", sdk::shape_text(t.shape, t.ndim < 0 || t.ndim > KVP_MAX_DIMS ? 0 : t.ndim),
            " and elements of ", int64_t{t.dtype_bits}, " bits, planned for [", batch, ", ", q.heads, ", ", tokens,
            ", ", q.dim, "]");
    }
    int64_t stride = 1;
    for (int32_t k = t.ndim; k-- > 0; stride *= t.shape[k]) t.strides[k] = stride;
    t.data = nullptr;
    t.device_type = KVP_DEVICE_CPU;
  }
  return KVP_OK;
}

[[noreturn]] void refused(const WholeQuantizer& q, kvp_status status, const char* verb, const Answer& answer) {
  fail(status, "quantizer '", id_of(q.handle), "' ", verb, ": ", answer.text);
}

}  // namespace

kvp_qplan WholeQuantizer::plan(int64_t batch, int64_t tokens) const {
  kvp_qplan plan;
  Answer answer;
  const kvp_status status = ask(*this, batch, tokens, plan, answer);
  if (status != KVP_OK) refused(*this, status, "cannot pack so many tokens", answer);
  return plan;
}

Bound WholeQuantizer::bound(int64_t batch, int64_t tokens) const {
  const int64_t group = std::clamp<int64_t>(spec_of(handle).group_size, 1, 1 << 20);
  kvp_qplan plan;
  Answer answer;
  Bound most;
  const auto add = [&] {
    const PartBytes bytes = part_bytes(plan);
    most.bytes.codes = std::max(most.bytes.codes, bytes.codes);
    most.bytes.scales = std::max(most.bytes.scales, bytes.scales);
    most.workspace = std::max(most.workspace, static_cast<int64_t>(plan.workspace_bytes));
    most.appends = quantized::appends(plan);
  };
  kvp_status status = KVP_OK;
  for (const int64_t n : {tokens, up(tokens, 8), up(tokens, group), up(tokens, 8 * group)}) {
    status = ask(*this, batch, n, plan, answer);
    if (status == KVP_OK) break;
  }
  if (status != KVP_OK) refused(*this, status, "packs no number of tokens", answer);
  add();
  // The reference gives a tensor that is one group a scale an element: more than longer ones have.
  const int64_t slot = batch * heads * dim, one = group / slot;
  if (one >= 1 && one * slot == group && one <= tokens && ask(*this, batch, one, plan, answer) == KVP_OK) add();
  return most;
}

void WholeQuantizer::pack(const kvp_call& call, const kvp_tensor& in, uint32_t flags, const kvp_qplan& parts,
                          std::byte* workspace) const {
  Answer answer;
  const kvp_status status =
      handle.iface->quantize(handle.self, &call, &in, flags, parts.parts, parts.n_parts, workspace, &answer.err);
  if (status != KVP_OK) refused(*this, status, "failed to pack", answer);
}

void WholeQuantizer::unpack(const kvp_call& call, const kvp_qplan& parts, kvp_tensor out) const {
  Answer answer;
  const kvp_status status = handle.iface->dequantize(handle.self, &call, parts.parts, parts.n_parts, &out, &answer.err);
  if (status != KVP_OK) refused(*this, status, "failed to unpack", answer);
}

bool appends(const kvp_qplan& plan) noexcept { return std::any_of(plan.parts, plan.parts + plan.n_parts, is_shared); }

PartBytes part_bytes(const kvp_qplan& plan) noexcept {
  PartBytes bytes;
  for (uint32_t i = 0; i < plan.n_parts; ++i) {
    (is_scale(plan.parts[i]) ? bytes.scales : bytes.codes) += aligned(bytes_of(plan.parts[i].t));
  }
  return bytes;
}

WholeTensor::WholeTensor(const kvp_qplan& plan, int64_t batch, int64_t tokens, uint64_t owner)
    : plan_(plan), batch_(batch), tokens_(tokens) {
  const PartBytes bytes = part_bytes(plan);
  const auto take = [&](int32_t purpose, int64_t n) {
    if (n == 0) return sdk::Block();
    sdk::Block block(sdk::host_memory(owner, purpose, static_cast<uint64_t>(n)));
    std::memset(block.data(), 0, block.bytes());
    return block;
  };
  codes_ = take(KVP_PURPOSE_PACKED, bytes.codes);
  scales_ = take(KVP_PURPOSE_SCALES, bytes.scales);
  int64_t codes = 0, scales = 0;
  for (uint32_t i = 0; i < plan_.n_parts; ++i) {
    const bool scale = is_scale(plan_.parts[i]);
    int64_t& at = scale ? scales : codes;
    plan_.parts[i].t.data = (scale ? scales_ : codes_).data() + at;
    at += aligned(bytes_of(plan_.parts[i].t));
  }
}

WholeTensor WholeTensor::copy(uint64_t owner) const {
  if (empty()) return {};
  WholeTensor out(plan_, batch_, tokens_, owner);
  if (codes_.bytes() > 0) std::memcpy(out.codes_.data(), codes_.data(), codes_.bytes());
  if (scales_.bytes() > 0) std::memcpy(out.scales_.data(), scales_.data(), scales_.bytes());
  return out;
}

kvp_qplan WholeTensor::slice(int64_t b, int64_t first, int64_t tokens) const noexcept {
  kvp_qplan out = plan_;
  for (uint32_t i = 0; i < out.n_parts; ++i) {
    kvp_tensor& t = out.parts[i].t;
    if (is_shared(out.parts[i])) continue;
    t.data = sdk::at(t, b, 0, first);
    t.shape[0] = 1;
    t.shape[2] = tokens;
  }
  return out;
}

void WholeTensor::copy_shared(const WholeTensor& from) noexcept {
  for (uint32_t i = 0; i < plan_.n_parts; ++i) {
    const kvp_tensor &to = plan_.parts[i].t, &old = from.plan_.parts[i].t;
    if (is_shared(plan_.parts[i])) std::memcpy(to.data, old.data, std::min(size_of(to), size_of(old)));
  }
}

void WholeTensor::copy_row(int64_t b, const WholeTensor& from, int64_t row) noexcept {
  for (uint32_t i = 0; i < plan_.n_parts; ++i) {
    if (is_shared(plan_.parts[i])) continue;
    const kvp_tensor &to = plan_.parts[i].t, &old = from.plan_.parts[i].t;
    const int64_t bytes = std::min(to.shape[2], old.shape[2]) * to.shape[3] * element_of(to);
    for (int64_t head = 0; head < to.shape[1]; ++head) {
      std::memcpy(sdk::at(to, b, head), sdk::at(old, row, head), static_cast<size_t>(bytes));
    }
  }
}

void WholeTensor::add_memory(kvp_memory& out) const noexcept {
  for (auto* bytes : {&out.used, &out.reserved}) {
    (*bytes)[KVP_TIER_HOST][KVP_PURPOSE_PACKED] += codes_.bytes();
    (*bytes)[KVP_TIER_HOST][KVP_PURPOSE_SCALES] += scales_.bytes();
  }
}

}  // namespace kvplug::quantized
