// SPDX-License-Identifier: Apache-2.0
#include "core/negotiate.h"

#include <algorithm>
#include <map>

#include "core/did_you_mean.h"
#include "core/kind_options.h"
#include "core/plugin_call.h"
#include "core/registry.h"

namespace kvplug {
namespace {

constexpr std::string_view kStatePartner = "mamba";

std::string layer_name(const kvp_layer& layer) {
  return "layer " + std::to_string(layer.model_layer) + " (" + layer_word(layer) + ")";
}

void check_layer(std::span<const kvp_layer> layers, size_t index) {
  const kvp_layer& layer = layers[index];
  const auto fail = [&](const std::string& what) {
    throw Error(Code::kInvalidArgument,
                layer_name(layer) + ", number " + std::to_string(index) + " of the list: " + what);
  };
  if (layer.kind < KVP_LAYER_NONE || layer.kind > KVP_LAYER_STATE) {
    fail("kind " + std::to_string(layer.kind) + " is unknown");
  }
  if (layer.kind == KVP_LAYER_NONE) return;
  if (layer.kind == KVP_LAYER_STATE) {
    if (layer.n_slots == 0) fail("a state layer needs at least one slot");
    return;
  }
  if (layer.q_heads < 1 || layer.kv_heads < 1 || layer.q_heads % layer.kv_heads != 0 || layer.key_dim < 1 ||
      layer.value_dim < 1) {
    fail("q_heads " + std::to_string(layer.q_heads) + ", kv_heads " + std::to_string(layer.kv_heads) + ", key_dim " +
         std::to_string(layer.key_dim) + ", value_dim " + std::to_string(layer.value_dim) +
         " cannot be; q_heads must be a multiple of kv_heads");
  }
  const bool windowed = layer.kind == KVP_LAYER_SLIDING || layer.kind == KVP_LAYER_CHUNKED;
  if (windowed && layer.window < 1) fail("window " + std::to_string(layer.window) + " must be at least 1");
  if ((layer.flags & KVP_LAYER_SHARED) == 0) return;
  if (layer.shared_with < 0 || static_cast<size_t>(layer.shared_with) >= layers.size()) {
    fail("shared_with " + std::to_string(layer.shared_with) + " is outside the list");
  }
  const kvp_layer& owner = layers[static_cast<size_t>(layer.shared_with)];
  const bool owns =
      owner.kind >= KVP_LAYER_FULL && owner.kind <= KVP_LAYER_CROSS && (owner.flags & KVP_LAYER_SHARED) == 0;
  if (!owns || owner.kv_heads != layer.kv_heads || owner.key_dim != layer.key_dim ||
      owner.value_dim != layer.value_dim) {
    fail("shared_with " + std::to_string(layer.shared_with) + " owns no storage of the same heads and widths");
  }
}

// Why HF's rules keep a kind from a part, in its own meaning; "" if they do not.
constexpr const char* kStrictReason =
    "hf_compat = \"strict\" serves full_attention layers alone, as Hugging Face does; \"fixed\" serves these too";

// A kind that may serve layers: loaded and its options resolved when it is first needed, quantizers made for each pair
// of head widths.
class Candidate {
 public:
  Candidate(std::string kind, bool chosen) : kind_(std::move(kind)), chosen_(chosen) {}

  const std::string& kind() const { return kind_; }
  bool strict() const { return strict_; }

  // The group that the part would join, without parts. Throws kUnsupported where no quantizer can be made for it.
  const Group& open(Registry& registry, const CacheChoice& choice, const StackParams& params, const kvp_layer& layer) {
    if (group_.plugin == nullptr) load(registry, choice);
    const bool attention = layer.kind != KVP_LAYER_STATE;
    if (quantizer_ == nullptr || !attention) return group_;
    Group& group = by_width_.try_emplace({layer.key_dim, layer.value_dim}, group_).first->second;
    if (group.quantizers == nullptr) {
      group.quantizers = std::make_shared<QuantizerPair>(registry.host(), *quantizer_, *group.key_options,
                                                         *group.value_options, layer.key_dim, layer.value_dim, params);
    }
    return group;
  }

 private:
  void load(Registry& registry, const CacheChoice& choice) {
    const CachePlugin& plugin = registry.cache(kind_);
    const OptionsSchema& schema = *registry.schema(KVP_IFACE_CACHE, kind_);
    const Schemas quantizers = takes_quantizers(schema) ? registry.quantizer_schemas() : Schemas();
    nlohmann::json given = choice.options;
    if (!chosen_) given = known_of(schema, quantizers, std::move(given));
    const KindOptions options(kind_, schema, quantizers, given, registry.places());
    for (const auto& [key, value] : given.items()) check(options, key, value);
    if (takes_quantizers(schema))
      check(options, "backend", given.value("backend", schema.find("backend")->default_value));
    const DealtOptions dealt = options.deal(given);

    plugin.library->check_usable();
    group_.options = std::make_shared<ResolvedOptions>(schema, dealt.cache);
    strict_ = group_.options->json().value("hf_compat", "") == "strict";
    if (takes_quantizers(schema)) {
      quantizer_ = &registry.quantizer(dealt.backend);
      const OptionsSchema& its = quantizers.find(dealt.backend)->second;
      group_.key_options = std::make_shared<ResolvedOptions>(its, dealt.key);
      group_.value_options = std::make_shared<ResolvedOptions>(its, dealt.value);
    }
    group_.plugin = &plugin;
  }

  void check(const KindOptions& options, const std::string& key, const nlohmann::json& value) const {
    const std::optional<OptionProblem> problem = options.check(key, value);
    if (!problem) return;
    std::string hint = problem->hint;
    if (hint.empty()) {
      const std::vector<std::string> keys = options.keys();
      const std::string near = did_you_mean(key, keys);
      hint = near.empty() ? "" : "did you mean `" + near + "`? ";
      hint += "(keys of \"" + kind_ + "\": " + (keys.empty() ? "none" : join_words(keys)) + ")";
    }
    throw Error(Code::kConfig, problem->message, hint, "generation.cache_config." + key);
  }

  // Another kind takes of the chosen one's options what it knows too; the rest are its defaults.
  nlohmann::json known_of(const OptionsSchema& schema, const Schemas& quantizers, nlohmann::json given) const {
    if (KindOptions(kind_, schema, quantizers, given, {}).check("backend", given.value("backend", ""))) {
      given.erase("backend");
    }
    const KindOptions options(kind_, schema, quantizers, given, {});
    for (auto at = given.begin(); at != given.end();) {
      at = options.check(at.key(), *at) ? given.erase(at) : std::next(at);
    }
    return given;
  }

  const std::string kind_;
  const bool chosen_;
  bool strict_ = false;
  Group group_;
  const QuantizerPlugin* quantizer_ = nullptr;
  std::map<std::pair<int32_t, int32_t>, Group> by_width_;
};

// "" if the kind serves these parts, else the reason. Fills `info` when it does.
std::string refusal(const Group& group, const std::vector<Part>& parts, const StackParams& params,
                    kvp_cache_info& info) {
  Group asked = group;
  asked.parts = parts;
  const std::vector<kvp_layer> layers = asked.layers();
  const kvp_cache_create create = create_args(asked, layers, params);
  info = {};
  info.struct_size = sizeof info;
  ErrorText text;
  const kvp_status status = try_plugin(text, group.plugin->iface.probe, &create, &info);
  if (status == KVP_OK) return {};
  if (status != KVP_UNSUPPORTED) group.plugin->library->fail("probe", status, text.text());
  const std::string reason = text.text();
  return reason.empty() ? "refused without a reason" : reason;
}

class Negotiation {
 public:
  Negotiation(Registry& registry, const CacheChoice& choice, const StackParams& params)
      : registry_(registry), choice_(choice), params_(params) {
    if (choice.on_unsupported != "error" && choice.on_unsupported != "fallback") {
      throw Error(Code::kConfig, "\"" + choice.on_unsupported + "\" is not one of error, fallback", {},
                  "cache.negotiation.on_unsupported");
    }
    attention_.push_back(&candidate(choice.kind));
    state_.push_back(&candidate(choice.kind));
    if (choice.kind != kStatePartner && registry.manifest(KVP_IFACE_CACHE, kStatePartner) != nullptr) {
      state_.push_back(&candidate(std::string(kStatePartner)));
    }
    if (choice.on_unsupported == "fallback") {
      for (const std::string& kind : choice.fallback) {
        attention_.push_back(&candidate(kind));
        state_.push_back(&candidate(kind));
      }
    }
  }

  // Puts every part into a group; a kind that refuses its parts together is left out and the rest tried again.
  std::vector<Group> assign(const std::vector<Part>& parts) {
    for (;;) {
      std::vector<Group> groups;
      for (const Part& part : parts) add(groups, part);
      const auto refused = std::find_if(groups.begin(), groups.end(), [&](Group& group) {
        const std::string reason = refusal(group, group.parts, params_, group.info);
        if (!reason.empty()) left_out_[group.plugin->descriptor.id] = reason;
        return !reason.empty();
      });
      if (refused == groups.end()) return groups;
    }
  }

  // Why the kinds before the one that serves the layer were passed over; "" if the first one does.
  std::string reason_of(int32_t layer, const kvp_layer& spec) const {
    const auto found = reasons_.find({layer, spec.kind == KVP_LAYER_STATE});
    return found == reasons_.end() ? "" : found->second;
  }

 private:
  Candidate& candidate(const std::string& kind) {
    auto& slot = candidates_[kind];
    if (slot == nullptr) slot = std::make_unique<Candidate>(kind, kind == choice_.kind);
    return *slot;
  }

  // "" and the group that the part joins, or why the kind does not serve it.
  std::string try_kind(Candidate& candidate, const Part& part, const Group*& open) {
    const auto out = left_out_.find(candidate.kind());
    if (out != left_out_.end()) return out->second;
    try {
      open = &candidate.open(registry_, choice_, params_, part.spec);
    } catch (const Error& error) {
      if (error.code() != Code::kUnsupported) throw;
      return error.message();
    }
    if (candidate.strict() && part.spec.kind != KVP_LAYER_FULL) return kStrictReason;
    kvp_cache_info info;
    return refusal(*open, {part}, params_, info);
  }

  void add(std::vector<Group>& groups, const Part& part) {
    const bool state = part.spec.kind == KVP_LAYER_STATE;
    std::string reasons;
    for (Candidate* candidate : state ? state_ : attention_) {
      const Group* open = nullptr;
      const std::string reason = try_kind(*candidate, part, open);
      if (!reason.empty()) {
        reasons += (reasons.empty() ? "" : "; ") + ("\"" + candidate->kind() + "\": " + reason);
        // HF refuses the whole model: the partner is then none.
        if (candidate->strict() && choice_.on_unsupported != "fallback") break;
        continue;
      }
      auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& other) {
        return other.plugin == open->plugin && other.quantizers == open->quantizers;
      });
      if (group == groups.end()) group = groups.insert(groups.end(), *open);
      group->parts.push_back(part);
      reasons_[{part.layer, state}] = reasons;
      return;
    }
    std::string hint = state && reasons.find(kStrictReason) == std::string::npos ? ""
                       : choice_.on_unsupported == "fallback"
                           ? "name one more kind in cache.negotiation.fallback"
                           : "choose another cache_implementation, or set cache.negotiation.on_unsupported "
                             "= \"fallback\" and name kinds in fallback";
    if (!hint.empty()) hint += " (known kinds: " + join_words(registry_.cache_kinds()) + ")";
    throw Error(Code::kUnsupported, layer_name(part.spec) + " is served by no cache kind: " + reasons, hint);
  }

  Registry& registry_;
  const CacheChoice& choice_;
  const StackParams& params_;
  std::map<std::string, std::unique_ptr<Candidate>> candidates_;
  std::vector<Candidate*> attention_, state_;
  std::map<std::string, std::string> left_out_;
  std::map<std::pair<int32_t, bool>, std::string> reasons_;
};

// Why attention is the host's, over views; "" if the plugin says that it attends itself.
std::string why_no_attend(const Group& group) {
  if (!group.plugin->attend) return "has no " KVP_EXT_ATTEND;
  return (group.info.flags & KVP_CACHE_NO_ATTEND) != 0 ? "with this cache_config leaves attention to the host" : "";
}

// One attention call is what the cache makes of it; whether packed tokens are read as they lie is the quantizer's
// affair.
void note_unpacked(LayerPlacement& placed, const QuantizerPair& pair, const kvp_layer& layer,
                   const StackParams& params) {
  kvp_qattend_desc desc{};
  desc.struct_size = sizeof desc;
  desc.q_heads = layer.q_heads;
  desc.kv_heads = layer.kv_heads;
  desc.key_dim = layer.key_dim;
  desc.value_dim = layer.value_dim;
  desc.max_batch = std::max<int64_t>(params.batch, 1);
  desc.max_query = 1;
  if (layer.kind == KVP_LAYER_SLIDING) desc.window = layer.window;
  if (layer.kind == KVP_LAYER_CHUNKED) desc.chunk = layer.window;
  desc.q_dtype = params.dtype;
  desc.device_type = params.device_type;
  desc.device_id = params.device_id;
  const std::string why = pair.why_unpacked(desc);
  if (why.empty()) return;
  placed.reason += (placed.reason.empty() ? "" : "; ") + ("packed tokens are unpacked in tiles: " + why);
}

}  // namespace

const char* layer_word(const kvp_layer& layer) {
  switch (layer.kind) {
    case KVP_LAYER_NONE: return "none";
    case KVP_LAYER_FULL: return "full_attention";
    case KVP_LAYER_SLIDING: return "sliding_attention";
    case KVP_LAYER_CHUNKED: return "chunked_attention";
    case KVP_LAYER_CROSS: return "cross_attention";
    case KVP_LAYER_STATE: return "state";
    default: return "unknown";
  }
}

std::vector<kvp_layer> Group::layers() const {
  std::vector<kvp_layer> list;
  for (const Part& part : parts) list.push_back(part.spec);
  return list;
}

kvp_cache_create create_args(const Group& group, const std::vector<kvp_layer>& layers, const StackParams& params) {
  kvp_cache_create create{};
  create.struct_size = sizeof create;
  create.layers = layers.data();
  create.n_layers = layers.size();
  create.layer_stride = sizeof(kvp_layer);
  create.batch = params.batch;
  create.tokens = params.tokens;
  create.rollback = params.rollback;
  create.device_type = params.device_type;
  create.device_id = params.device_id;
  create.dtype = params.dtype;
  create.options = group.options->data();
  create.n_options = group.options->size();
  if (group.quantizers != nullptr) {
    create.quantizer_key = group.quantizers->key();
    create.quantizer_value = group.quantizers->value();
  }
  return create;
}

Layout negotiate(Registry& registry, std::span<const kvp_layer> layers, const CacheChoice& choice,
                 const StackParams& params) {
  Layout layout;
  layout.layers.assign(layers.begin(), layers.end());
  std::vector<Part> parts;
  for (size_t i = 0; i < layers.size(); ++i) {
    check_layer(layers, i);
    const auto index = static_cast<int32_t>(i);
    const bool shared = (layers[i].flags & KVP_LAYER_SHARED) != 0;
    layout.owner.push_back(layers[i].kind == KVP_LAYER_NONE ? -1 : shared ? layers[i].shared_with : index);
    if (layout.owner.back() != index) continue;
    Part attention{index, layers[i]}, state{index, layers[i]};
    attention.spec.struct_size = state.spec.struct_size = sizeof(kvp_layer);
    if (layers[i].kind != KVP_LAYER_STATE) {
      attention.spec.slots = nullptr;
      attention.spec.n_slots = attention.spec.slot_stride = 0;
      parts.push_back(attention);
      if (layers[i].n_slots == 0) continue;
    }
    state.spec.kind = KVP_LAYER_STATE;
    parts.push_back(state);
  }

  Negotiation negotiation(registry, choice, params);
  layout.groups = negotiation.assign(parts);

  for (size_t i = 0; i < layers.size(); ++i) {
    const auto place = [&](const kvp_layer& spec, const std::string& plugin, const char* attend) {
      layout.placements.push_back({static_cast<int32_t>(i), layers[i].model_layer, layer_word(spec), plugin, attend,
                                   negotiation.reason_of(static_cast<int32_t>(i), spec)});
    };
    if (layout.owner[i] < 0) place(layers[i], "", "none");
    for (const Part& part : parts) {
      if (part.layer != layout.owner[i]) continue;
      const bool shared = part.layer != static_cast<int32_t>(i);
      const bool state = part.spec.kind == KVP_LAYER_STATE;
      if (shared && state) continue;
      for (const Group& group : layout.groups) {
        const bool serves = std::any_of(group.parts.begin(), group.parts.end(), [&](const Part& its) {
          return its.layer == part.layer && its.spec.kind == part.spec.kind;
        });
        if (!serves) continue;
        const std::string no_attend = why_no_attend(group);
        place(state    ? part.spec
              : shared ? layers[i]
                       : part.spec,
              group.plugin->descriptor.id,
              state               ? "none"
              : no_attend.empty() ? "fused"
                                  : "view");
        LayerPlacement& placed = layout.placements.back();
        if (group.quantizers != nullptr) placed.quantizer_key = placed.quantizer_value = group.quantizers->id();
        if (!state && !no_attend.empty()) {
          if (placed.reason.empty()) placed.reason = "\"" + placed.plugin + "\" " + no_attend;
        } else if (!state && group.quantizers != nullptr) {
          note_unpacked(placed, *group.quantizers, layers[i], params);
        }
      }
    }
  }
  check_required(layout, choice.require);
  return layout;
}

}  // namespace kvplug
