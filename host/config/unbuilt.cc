// SPDX-License-Identifier: Apache-2.0
#include "config/unbuilt.h"

#include <algorithm>
#include <array>

namespace kvplug::config {
namespace {

constexpr auto kUnbuilt = std::to_array<UnbuiltKey>({
    {"assistant", "", "assisted decoding comes later"},
    {"cache.check_finite", "false", ""},
    {"cache.layers", "", "one cache kind serves all layers in this release"},
    {"cache.prefix", "", ""},
    {"cache.state_dtype", R"("auto")", ""},
    {"cache.state_snapshots", "1", ""},
    {"debug", "", ""},
    {"metrics", "", "output.format = \"json\" holds the figures"},
    {"model.attn_implementation", R"("auto")", ""},
    {"perplexity", "", ""},
    {"report", "", ""},
    {"tokenizer.clean_up_tokenization_spaces", "false", "text is given as the tokenizer decodes it"},
    {"prompts[].decoder_input_ids", "", "encoder-decoder models come later"},

    {"generation.assistant_confidence_threshold", "*", ""},
    {"generation.assistant_early_exit", "*", ""},
    {"generation.assistant_lookbehind", "*", ""},
    {"generation.compile_config", "*", ""},
    {"generation.cross_attention", "", "encoder-decoder models come later"},
    {"generation.decoder_start_token_id", "*", "encoder-decoder models come later"},
    {"generation.diversity_penalty", "*", ""},
    {"generation.early_stopping", "*", ""},
    {"generation.encoder_no_repeat_ngram_size", "*", ""},
    {"generation.encoder_repetition_penalty", "*", ""},
    {"generation.exponential_decay_length_penalty", "", ""},
    {"generation.guidance_scale", "1.0", ""},
    {"generation.length_penalty", "*", ""},
    {"generation.max_matching_ngram_size", "*", ""},
    {"generation.num_assistant_tokens", "*", ""},
    {"generation.num_assistant_tokens_schedule", "*", ""},
    {"generation.num_beam_groups", "1", ""},
    {"generation.num_beams", "1", "beam search comes later; leave the key out for greedy decoding or sampling"},
    {"generation.num_return_sequences", "1", "repeat the prompt under [[prompts]] with a seed each"},
    {"generation.output_scores", "*", "output_logits gives the logits before the processors"},
    {"generation.penalty_alpha", "", ""},
    {"generation.prompt_lookup_num_tokens", "", ""},
    {"generation.sequence_bias", "", ""},
    {"generation.target_lookbehind", "*", ""},
    {"generation.token_healing", "false", ""},
    {"generation.top_h", "", ""},
    {"generation.use_mtp", "false", ""},
    {"generation.watermarking_config", "", ""},
});

constexpr auto kWithoutEffect =
    std::to_array<std::string_view>({"transformers_version", "_from_model_config", "return_dict_in_generate",
                                     "output_attentions", "output_hidden_states", "low_memory", "is_assistant"});

}  // namespace

const UnbuiltKey* find_unbuilt(std::string_view path) {
  if (path.starts_with("prompts[].generation.")) path.remove_prefix(std::string_view("prompts[].").size());
  const auto covers = [&](const UnbuiltKey& key) {
    return path.starts_with(key.path) &&
           (path.size() == key.path.size() || path[key.path.size()] == '.' || path[key.path.size()] == '[');
  };
  const auto found = std::find_if(kUnbuilt.begin(), kUnbuilt.end(), covers);
  return found == kUnbuilt.end() ? nullptr : &*found;
}

std::span<const UnbuiltKey> unbuilt_keys() { return kUnbuilt; }
std::span<const std::string_view> keys_without_effect() { return kWithoutEffect; }

}  // namespace kvplug::config
