// SPDX-License-Identifier: Apache-2.0
// InHostCache<Form>: a paged cache without options whose pages lie in host memory. Form says the rest:
//   static constexpr const char* kWord;   the kind's name
//   static constexpr bool kFixed;         a capacity, create's `tokens`
//   using Pages;                          HeapPages or SlabPages
#pragma once

#include <kvplug/sdk/paged_cache.h>

namespace kvplug::sdk {

template <class Form>
class InHostCache final : public PagedCache {
 public:
  static void probe(const kvp_cache_create& create, kvp_cache_info& out) { probe_of(plan_of(create), out); }
  static void plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out) {
    plan_in_host(plan_of(create), batch, tokens, out);
  }
  static const void* extension(std::string_view id) noexcept {
    return id == KVP_EXT_ATTEND ? CachePlugin<InHostCache>::attend_extension() : nullptr;
  }

  explicit InHostCache(const kvp_cache_create& create) : InHostCache(plan_of(create), create.owner) {}
  std::unique_ptr<InHostCache> clone(const kvp_call&, uint64_t owner) const {
    return std::unique_ptr<InHostCache>(new InHostCache(*this, owner));
  }

 private:
  InHostCache(Plan plan, uint64_t owner) : PagedCache(plan, stores(plan, owner), owner) {}
  InHostCache(const InHostCache& other, uint64_t owner) : PagedCache(other, stores(other.form(), owner), owner) {}

  static Plan plan_of(const kvp_cache_create& create) {
    Options(create.options, create.n_options, {});
    return Plan(create, Form::kWord, Form::kFixed);
  }
  static Stores stores(const Plan& plan, uint64_t owner) {
    Stores out;
    for (const Spec& spec : plan.specs) out.push_back(std::make_unique<typename Form::Pages>(spec.layout, owner));
    return out;
  }
};

}  // namespace kvplug::sdk
