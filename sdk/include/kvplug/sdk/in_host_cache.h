// SPDX-License-Identifier: Apache-2.0
// InHostCache<Form>: a paged cache without options whose pages lie where it attends: in host memory, or in that of a
// CUDA device. Form says the rest:
//   static constexpr const char* kWord;   the kind's name
//   static constexpr bool kFixed;         a capacity, create's `tokens`
//   using Pages;                          HeapPages or SlabPages, in host memory
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
    if (id == KVP_EXT_ATTEND) return CachePlugin<InHostCache>::attend_extension();
    return Form::kFixed && id == KVP_EXT_CAPTURE ? CachePlugin<InHostCache>::capture_extension() : nullptr;
  }

  explicit InHostCache(const kvp_cache_create& create) : InHostCache(plan_of(create), create.owner) {}
  std::unique_ptr<InHostCache> clone(const kvp_call& call, uint64_t owner) const {
    return std::unique_ptr<InHostCache>(new InHostCache(*this, owner, call.stream));
  }

 private:
  InHostCache(Plan plan, uint64_t owner) : PagedCache(plan, stores(plan, owner, nullptr), owner) {}
  InHostCache(const InHostCache& other, uint64_t owner, void* stream)
      : PagedCache(other, stores(other.form(), owner, stream), owner) {}

  static Plan plan_of(const kvp_cache_create& create) {
    Options(create.options, create.n_options, {});
    return Plan(create, Form::kWord, Form::kFixed, true);
  }
  static Stores stores(const Plan& plan, uint64_t owner, void* stream) {
    Stores out;
    if (plan.on_device()) {
      const auto queue = plan.make_queue(stream);
      for (const Spec& spec : plan.specs) {
        out.push_back(std::make_unique<DevicePages>(spec.layout, owner, queue, Form::kFixed));
      }
      return out;
    }
    for (const Spec& spec : plan.specs) out.push_back(std::make_unique<typename Form::Pages>(spec.layout, owner));
    return out;
  }
};

}  // namespace kvplug::sdk
