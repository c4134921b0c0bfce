// SPDX-License-Identifier: Apache-2.0
// What a stack would hold: the plugins' own figures, for all layers of a kind together and for each alone.
#include "core/cache_instance.h"
#include "core/cache_stack.h"
#include "core/negotiate.h"

namespace kvplug {

kvp_memory plan_group(const Group& group, const StackParams& params, int64_t batch, int64_t tokens) {
  const std::vector<kvp_layer> layers = group.layers();
  const kvp_cache_create create = create_args(group, layers, params);
  kvp_memory memory{};
  memory.struct_size = sizeof memory;
  call_plugin(*group.plugin->library, "plan", group.plugin->iface.plan, &create, batch, tokens, &memory);
  return memory;
}

StackPlan CacheStack::plan(Registry& registry, std::span<const kvp_layer> layers, const CacheChoice& wanted,
                           const StackParams& params, int64_t batch, int64_t tokens) {
  const Layout layout = negotiate(registry, layers, wanted, params);
  StackPlan plan;
  plan.total.struct_size = sizeof plan.total;
  plan.layers.resize(layers.size(), plan.total);
  plan.placements = layout.placements;
  plan.unprepared = why_unprepared(layout);
  plan.uncaptured = why_uncaptured(layout);
  for (const Group& group : layout.groups) {
    GroupChoice& choice = plan.choices.emplace_back();
    choice.plugin = group.plugin->descriptor.id;
    choice.options = group.options->json();
    choice.token_block = group.info.token_block;
    if (group.quantizers != nullptr) {
      choice.backend = group.quantizers->id();
      choice.key_options = group.key_options->json();
      choice.value_options = group.value_options->json();
    }
    add_memory(plan.total, plan_group(group, params, batch, tokens));
    for (const Part& part : group.parts) {
      Group alone = group;
      alone.parts = {part};
      add_memory(plan.layers[static_cast<size_t>(part.layer)], plan_group(alone, params, batch, tokens));
    }
  }
  return plan;
}

}  // namespace kvplug
