// SPDX-License-Identifier: Apache-2.0
// What an affine quantizer plugin compiles for an accelerator: packing and unpacking of blocks, in its arithmetic and
// with the bits of its kernels for the CPU. Work is queued on the stream; nothing waits.
#pragma once

#include <kvplug/sdk/packed.h>

namespace kvplug::sdk {

struct AffineDevice {
  // in: [batch, kv_heads, tokens, head_dim], whole blocks; parts: DATA, SCALE, ZERO; workspace: workspace_bytes of so
  // many heads and blocks. Returns 0 or the device's error number.
  int (*quantize)(int device, void* stream, const PackedForm& form, const kvp_tensor& in, const kvp_qpart* parts,
                  void* workspace);
  int (*dequantize)(int device, void* stream, const PackedForm& form, const kvp_qpart* parts, const kvp_tensor& out);
  int64_t (*workspace_bytes)(const PackedForm& form, int64_t heads_and_blocks);
};

}  // namespace kvplug::sdk
