// SPDX-License-Identifier: Apache-2.0
#include "model/describe/families.h"

#include <cmath>
#include <string_view>

#include "model/describe/families/family.h"
#include "model/describe/rope.h"

namespace kvplug::model {
namespace {

constexpr Family kFamilies[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .max_position_embeddings = 2048,
     .bias_flag = true,
     .mlp_bias_flag = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .kv_heads = 8,
     .max_position_embeddings = 131072,
     .rule = LayerRule::kSliding,
     .window_key = "sliding_window",
     .window = 4096},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .kv_heads = 32,
     .max_position_embeddings = 32768,
     .qkv_bias = true,
     .rule = LayerRule::kLastSliding,
     .window_key = "sliding_window",
     .window = 4096,
     .window_gate = true,
     .full_layers = 28},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .kv_heads = 32,
     .head_dim = 128,
     .max_position_embeddings = 32768,
     .bias_flag = true,
     .qk_norm = true,
     .rule = LayerRule::kLastSliding,
     .window_key = "sliding_window",
     .window = 4096,
     .window_gate = true,
     .full_layers = 28},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .kv_heads = 4,
     .head_dim = 256,
     .max_position_embeddings = 8192,
     .tie_word_embeddings = true,
     .act_key = "hidden_activation",
     .act = "gelu_pytorch_tanh",
     .bias_flag = true,
     .rule = LayerRule::kAlternating,
     .window_key = "sliding_window",
     .window = 4096,
     .read_more = read_gemma2},
    {.model_type = "llama4_text",
     .architecture = "Llama4ForCausalLM",
     .kv_heads = 8,
     .head_dim = 128,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .rope_theta = 500000.0,
     .bias_flag = true,
     .rule = LayerRule::kChunked,
     .window_key = "attention_chunk_size",
     .window = 8192,
     .read_more = read_llama4},
};

constexpr int64_t kMaxCount = 1 << 16;  // heads, layers
constexpr int64_t kMaxWidth = 1 << 20;  // hidden sizes
constexpr int64_t kMaxVocab = 1 << 24;

const Family& find_family(const ConfigReader& config, std::string& architecture) {
  const std::string model_type = config.string_or("model_type", "");
  if (const auto* names = config.find("architectures");
      names && names->is_array() && !names->empty() && (*names)[0].is_string()) {
    architecture = (*names)[0].get<std::string>();
  }
  std::string known;
  for (const Family& family : kFamilies) {
    const bool by_type = family.model_type == model_type;
    if (by_type && (architecture.empty() || architecture == family.architecture)) {
      architecture = family.architecture;
      return family;
    }
    known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  if (model_type.empty()) config.fail("model_type", "is missing", "give the folder of a Hugging Face model");
  config.fail("architectures",
              "\"" + (architecture.empty() ? model_type : architecture) + "\" (model_type \"" + model_type +
                  "\") is not supported in this release",
              "known: " + known);
}

void refuse_unsupported_parts(const ConfigReader& config) {
  if (config.has("quantization_config")) {
    config.fail("quantization_config", "quantized weights are not supported in this release",
                "use the unquantized checkpoint of this model (float32, bfloat16 or float16 safetensors)");
  }
  if (config.has("auto_map")) {
    config.fail("auto_map", "the model needs code of its own, which is never run",
                "use a model of a known family: Llama, Mistral, Qwen2, Qwen3, Gemma 2, Llama 4 (text)");
  }
}

std::string read_activation(const ConfigReader& config, const Family& family) {
  const std::string act = config.string_or(family.act_key, family.act);
  if (act == "silu" || act == "swish") return "silu";
  if (act == "gelu_pytorch_tanh") return act;
  config.fail(family.act_key, "\"" + act + "\" is not supported in this release", "known: silu, gelu_pytorch_tanh");
}

LayerNames layer_names(int64_t index, bool qk_norm) {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  LayerNames names;
  names.input_norm = layer + "input_layernorm.weight";
  names.mlp_norm = layer + "post_attention_layernorm.weight";
  names.q = layer + "self_attn.q_proj";
  names.k = layer + "self_attn.k_proj";
  names.v = layer + "self_attn.v_proj";
  names.o = layer + "self_attn.o_proj";
  if (qk_norm) {
    names.q_norm = layer + "self_attn.q_norm.weight";
    names.k_norm = layer + "self_attn.k_norm.weight";
  }
  names.gate = layer + "mlp.gate_proj";
  names.up = layer + "mlp.up_proj";
  names.down = layer + "mlp.down_proj";
  return names;
}

}  // namespace

void apply_family(const ConfigReader& config, Description& out) {
  const Family& family = find_family(config, out.architecture);
  refuse_unsupported_parts(config);
  out.model_type = family.model_type;
  out.vocab_size = config.integer("vocab_size", 1, kMaxVocab);
  out.hidden_size = config.integer("hidden_size", 1, kMaxWidth);
  const int64_t intermediate_size = config.integer("intermediate_size", 1, kMaxWidth);
  out.q_heads = config.integer("num_attention_heads", 1, kMaxCount);
  const bool kv_named = config.json().contains("num_key_value_heads");
  out.kv_heads = config.integer_or("num_key_value_heads", 1, kMaxCount,
                                   kv_named || !family.kv_heads ? out.q_heads : family.kv_heads);
  if (out.q_heads % out.kv_heads != 0) {
    config.fail("num_attention_heads", std::to_string(out.q_heads) + " query heads cannot share " +
                                           std::to_string(out.kv_heads) + " key/value heads evenly");
  }
  int64_t head_dim = config.json().contains("head_dim") ? 0 : family.head_dim;
  if (head_dim == 0 && !config.has("head_dim")) {
    if (out.hidden_size % out.q_heads != 0) {
      config.fail("hidden_size", std::to_string(out.hidden_size) + " is no multiple of " + std::to_string(out.q_heads) +
                                     " heads, and head_dim is missing");
    }
    head_dim = out.hidden_size / out.q_heads;
  }
  out.head_dim = config.integer_or("head_dim", 2, kMaxWidth, head_dim);
  if (out.head_dim % 2 != 0 || out.head_dim < 2)
    config.fail("head_dim", std::to_string(out.head_dim) + " is odd; rotary embedding needs pairs");
  out.max_position_embeddings =
      config.integer_or("max_position_embeddings", 1, INT32_MAX, family.max_position_embeddings);
  out.rms_norm_eps = config.number_or("rms_norm_eps", 0.0, 1.0, family.rms_norm_eps);
  out.hidden_act = read_activation(config, family);
  out.tie_word_embeddings = config.boolean_or("tie_word_embeddings", family.tie_word_embeddings);
  const bool attention_bias = family.bias_flag && config.boolean_or("attention_bias", false);
  out.qkv_bias = family.qkv_bias || attention_bias;
  out.o_bias = attention_bias;
  out.mlp_bias = family.mlp_bias_flag && config.boolean_or("mlp_bias", false);
  out.qk_norm = family.qk_norm;
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  out.rope = read_rope(config, out.max_position_embeddings, family.rope_theta);

  out.layers.resize(static_cast<size_t>(config.integer("num_hidden_layers", 1, kMaxCount)));
  for (size_t i = 0; i < out.layers.size(); ++i) {
    LayerDescription& layer = out.layers[i];
    layer.names = layer_names(static_cast<int64_t>(i), out.qk_norm);
    layer.intermediate_size = intermediate_size;
    layer.cache.struct_size = sizeof layer.cache;
    layer.cache.kind = KVP_LAYER_FULL;
    layer.cache.q_heads = static_cast<int32_t>(out.q_heads);
    layer.cache.kv_heads = static_cast<int32_t>(out.kv_heads);
    layer.cache.key_dim = layer.cache.value_dim = static_cast<int32_t>(out.head_dim);
    layer.cache.shared_with = -1;
    layer.cache.model_layer = static_cast<int32_t>(i);
  }
  if (family.read_more != nullptr) family.read_more(config, out);
  set_layer_kinds(config, family, out);
  out.embed_tokens = "model.embed_tokens.weight";
  out.final_norm = "model.norm.weight";
  out.lm_head = out.tie_word_embeddings ? out.embed_tokens : "lm_head.weight";
}

}  // namespace kvplug::model
