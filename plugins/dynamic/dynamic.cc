// SPDX-License-Identifier: Apache-2.0
// The cache kind "dynamic": grows page by page with the text, in the type in which K and V arrive, on the CPU.
// Lossless; sliding and chunked layers stop growing at their window. Clones and beams share pages, copied when one
// writes.
#include <kvplug/sdk/paged_cache.h>

namespace kvplug::dynamic {
namespace {

class DynamicCache final : public sdk::PagedCache {
 public:
  static void probe(const kvp_cache_create& create, kvp_cache_info& out) { probe_of(plan_of(create), out); }
  static void plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out) {
    plan_in_host(plan_of(create), batch, tokens, out);
  }
  static const void* extension(std::string_view id) noexcept {
    return id == KVP_EXT_ATTEND ? sdk::CachePlugin<DynamicCache>::attend_extension() : nullptr;
  }

  explicit DynamicCache(const kvp_cache_create& create) : DynamicCache(plan_of(create), create.owner) {}
  std::unique_ptr<DynamicCache> clone(const kvp_call&, uint64_t owner) const {
    return std::unique_ptr<DynamicCache>(new DynamicCache(*this, owner));
  }

 private:
  DynamicCache(Plan plan, uint64_t owner) : PagedCache(plan, stores(plan, owner), owner) {}
  DynamicCache(const DynamicCache& other, uint64_t owner) : PagedCache(other, stores(other.form(), owner), owner) {}

  static Plan plan_of(const kvp_cache_create& create) {
    sdk::Options(create.options, create.n_options, {});
    return Plan(create, "dynamic", false);
  }
  static Stores stores(const Plan& plan, uint64_t owner) {
    Stores out;
    for (const Spec& spec : plan.specs) out.push_back(std::make_unique<sdk::HeapPages>(spec.layout, owner));
    return out;
  }
};

}  // namespace
}  // namespace kvplug::dynamic

// The schema is the text of dynamic.options.json: there are no options.
KVPLUG_PLUGIN("dynamic", "0.2.0", "kvplug",
              {{sizeof(kvp_descriptor), "dynamic", KVP_IFACE_CACHE,
                kvplug::sdk::CachePlugin<kvplug::dynamic::DynamicCache>::iface(),
                "grows with the text and keeps all of it, exactly", R"json({
  "type": "object",
  "properties": {},
  "additionalProperties": false
}
)json"}})
