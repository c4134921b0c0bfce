// SPDX-License-Identifier: Apache-2.0
// The cache kind "static": a fixed capacity, create's `tokens`, in memory that is taken once and never moves: with the
// first reserve or update, for its batch. Attention reads the filled part only, so the bits are those of "dynamic".
// Sliding and chunked layers hold their window, or the capacity if that is smaller. A larger batch later takes more
// memory beside what there is; a smaller one runs in it. Clones copy.
#include <kvplug/sdk/paged_cache.h>

namespace kvplug::fixed {
namespace {

class StaticCache final : public sdk::PagedCache {
 public:
  static void probe(const kvp_cache_create& create, kvp_cache_info& out) { probe_of(plan_of(create), out); }
  static void plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out) {
    plan_in_host(plan_of(create), batch, tokens, out);
  }
  static const void* extension(std::string_view id) noexcept {
    return id == KVP_EXT_ATTEND ? sdk::CachePlugin<StaticCache>::attend_extension() : nullptr;
  }

  explicit StaticCache(const kvp_cache_create& create) : StaticCache(plan_of(create), create.owner) {}
  std::unique_ptr<StaticCache> clone(const kvp_call&, uint64_t owner) const {
    return std::unique_ptr<StaticCache>(new StaticCache(*this, owner));
  }

 private:
  StaticCache(Plan plan, uint64_t owner) : PagedCache(plan, stores(plan, owner), owner) {}
  StaticCache(const StaticCache& other, uint64_t owner) : PagedCache(other, stores(other.form(), owner), owner) {}

  static Plan plan_of(const kvp_cache_create& create) {
    sdk::Options(create.options, create.n_options, {});
    return Plan(create, "static", true);
  }
  static Stores stores(const Plan& plan, uint64_t owner) {
    Stores out;
    for (const Spec& spec : plan.specs) out.push_back(std::make_unique<sdk::SlabPages>(spec.layout, owner));
    return out;
  }
};

}  // namespace
}  // namespace kvplug::fixed

// The schema is the text of static.options.json: there are no options.
KVPLUG_PLUGIN("static", "0.1.0", "kvplug",
              {{sizeof(kvp_descriptor), "static", KVP_IFACE_CACHE,
                kvplug::sdk::CachePlugin<kvplug::fixed::StaticCache>::iface(),
                "a fixed capacity, taken once: every decode step finds its memory ready", R"json({
  "type": "object",
  "properties": {},
  "additionalProperties": false
}
)json"}})
