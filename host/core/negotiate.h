// SPDX-License-Identifier: Apache-2.0
// Which plugin serves which layer: probes one layer at a time, then all that a kind is to serve together, and keeps the
// reasons of every refusal. Libraries are loaded and quantizers made, no cache instance.
//
// What is not a plugin's affair is resolved here: NONE layers own nothing, SHARED ones read their owner's storage, a
// hybrid (attention with state slots) is split into an attention part and a STATE part. A refused STATE part goes to
// the partner `mamba`; a refused attention part has no partner: on_unsupported decides.
#pragma once

#include <kvplug/abi.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cache_stack.h"
#include "core/options_schema.h"
#include "core/plugin_library.h"
#include "core/quantizer_pair.h"

namespace kvplug {

// One thing to be stored, as a plugin sees it: a FULL, SLIDING, CHUNKED or CROSS layer without slots, or a STATE layer.
struct Part {
  int32_t layer = 0;  // index in the stack's list
  kvp_layer spec{};   // slots are the caller's, valid during plan and create
};

// The parts that one instance of one kind serves, in the order of its own layer list; under a kind with quantizers all
// of them have the same head widths.
struct Group {
  const CachePlugin* plugin = nullptr;
  std::shared_ptr<const ResolvedOptions> options;
  std::shared_ptr<const QuantizerPair> quantizers;                    // null: the kind takes none
  std::shared_ptr<const ResolvedOptions> key_options, value_options;  // theirs
  std::vector<Part> parts;
  kvp_cache_info info{};

  std::vector<kvp_layer> layers() const;
};

struct Layout {
  std::vector<kvp_layer> layers;  // the stack's list; SHARED ones resolved in `owner`
  std::vector<int32_t> owner;     // of each layer: itself, the one it reads from, or -1 (NONE)
  std::vector<Group> groups;
  std::vector<LayerPlacement> placements;  // in layer order; a hybrid has two
};

// Throws kInvalidArgument for layers that contradict themselves, kConfig for bad options or words, kUnsupported with
// every reason, kPlugin / kAbi for libraries that are no good.
Layout negotiate(Registry& registry, std::span<const kvp_layer> layers, const CacheChoice& choice,
                 const StackParams& params);

// What a group's create would be given. `layers` is kept alive by the caller.
kvp_cache_create create_args(const Group& group, const std::vector<kvp_layer>& layers, const StackParams& params);

// What its cache would hold, by the plugin's plan().
kvp_memory plan_group(const Group& group, const StackParams& params, int64_t batch, int64_t tokens);

// Why a decode step on this layout cannot run prepared: storage that moves, a layer that is not attended to by its
// plugin. "" if it can.
std::string why_unprepared(const Layout& layout);
// Why such a step cannot be recorded into a graph (kvp.capture/1) either; "" if it can, as far as is known ahead.
std::string why_uncaptured(const Layout& layout);

// "full_attention", ...
const char* layer_word(const kvp_layer& layer);

// Throws kUnsupported with reasons unless every capability in `require` is there; kConfig for an unknown word.
void check_required(const Layout& layout, std::span<const std::string> require);

}  // namespace kvplug
