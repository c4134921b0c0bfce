// SPDX-License-Identifier: Apache-2.0
// What create asks for, read and checked as far as both modes (hf_compat) share it: options, quantizers, layers.
#pragma once

#include <kvplug/sdk/plugin.h>

#include <string>

namespace kvplug::quantized {

enum class Fused { kAuto, kRequired, kOff };

struct Options {
  int64_t residual = 128, sinks = 0, start = 0;
  bool hadamard = false, strict = false;
  Fused fused = Fused::kAuto;
};

// The words of a plugin that was called: pass &err, read text.
struct Answer {
  char text[256] = "";
  kvp_error err{sizeof(kvp_error), 0, 0, text, sizeof text, 0};
};

const char* id_of(const kvp_qhandle& quantizer);

// What a quantizer says of itself.
kvp_qspec spec_of(const kvp_qhandle& quantizer);

// Device and type are served, options are known and in range, both quantizers are there.
Options read_options(const kvp_cache_create& create);

// Layer i, an attention layer of sound numbers.
kvp_layer read_layer(const kvp_cache_create& create, size_t i);

template <class... Why>
[[noreturn]] void refuse_layer(kvp_status status, size_t i, const kvp_layer& layer, const Why&... why) {
  sdk::fail(status, "layer ", i, " (layer ", layer.model_layer, " of the model): ", why...);
}

}  // namespace kvplug::quantized
