// SPDX-License-Identifier: Apache-2.0
// A paged cache whose K/V lie in a slower tier, but for the layer being computed with and the next one, which is
// fetched meanwhile. On a device the tier is pinned host memory, on the CPU files under disk_path; without one K/V stay
// in memory. Sliding and chunked layers stay under offload_only_non_sliding, cross attention always does.
#pragma once

#include <kvplug/sdk/paged_cache.h>

#include "device_mover.h"
#include "file_mover.h"
#include "file_tier.h"
#include "swapped_pages.h"

namespace kvplug::offloaded {

// What makes a kind.
struct Choice {
  const char* word;
  bool fixed;                     // a capacity, as "static"
  bool offload_only_non_sliding;  // default
  std::unique_ptr<Tier> (*open_tier)(const std::string& disk_path, size_t layers);
};

template <const Choice& kChoice>
class OffloadedCache final : public sdk::PagedCache {
 public:
  static void probe(const kvp_cache_create& create, kvp_cache_info& out) {
    const Form form(create);
    if (form.moved() > 0 && !form.plan.on_device()) FileTier::check_folder(form.disk_path);
    probe_of(form.plan, out);
    // A layer comes to whichever of the two slots is free.
    if (form.moved() > 0) out.flags &= ~KVP_CACHE_STABLE_ADDRESS;
  }
  static void plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out);
  static const void* extension(std::string_view id) noexcept {
    if (id == KVP_EXT_ATTEND) return sdk::CachePlugin<OffloadedCache>::attend_extension();
    return id == KVP_EXT_OFFLOAD ? sdk::CachePlugin<OffloadedCache>::offload_extension() : nullptr;
  }

  explicit OffloadedCache(const kvp_cache_create& create);
  std::unique_ptr<OffloadedCache> clone(const kvp_call& call, uint64_t owner) const {
    if (mover_) mover_->flush();
    return std::unique_ptr<OffloadedCache>(new OffloadedCache(*this, Parts(form_, owner, call.stream), owner));
  }

  void begin_step(const kvp_call&) { fetch_first(); }
  void prefetch(const kvp_call&, int32_t layer);
  void end_step(const kvp_call&) { fetch_first(); }

 private:
  // What is asked for, checked.
  struct Form {
    explicit Form(const kvp_cache_create& create);
    bool moves(const Spec& spec) const noexcept {
      return (plan.on_device() || !disk_path.empty()) && spec.kind != KVP_LAYER_CROSS &&
             !(only_non_sliding && spec.window > 0);
    }
    size_t moved() const noexcept {
      return static_cast<size_t>(
          std::count_if(plan.specs.begin(), plan.specs.end(), [&](const Spec& spec) { return moves(spec); }));
    }
    int32_t slow_tier() const noexcept { return plan.on_device() ? KVP_TIER_PINNED : KVP_TIER_FILE; }
    Plan plan;
    std::string disk_path;
    bool only_non_sliding;
  };
  // What an instance is made of.
  struct Parts {
    Parts(const Form& form, uint64_t owner, void* stream);
    std::shared_ptr<sdk::DeviceQueue> queue;  // on a device
    std::unique_ptr<Mover> mover;             // where a layer moves
    Stores stores;
  };

  OffloadedCache(Form form, Parts parts, uint64_t owner)
      : PagedCache(form.plan, std::move(parts.stores), owner),
        form_(std::move(form)),
        queue_(std::move(parts.queue)),
        mover_(std::move(parts.mover)) {
    number_layers();
  }
  OffloadedCache(const OffloadedCache& other, Parts parts, uint64_t owner)
      : PagedCache(other, std::move(parts.stores), owner),
        form_(other.form_),
        queue_(std::move(parts.queue)),
        mover_(std::move(parts.mover)) {
    number_layers();
  }

  void number_layers();
  void fetch_first() {
    if (mover_) mover_->prefetch(0);
  }

  void enter(int32_t layer) override {
    if (const size_t i = moved_[static_cast<size_t>(layer)]; i != kStays) mover_->enter(i);
  }
  void leave(int32_t layer) noexcept override {
    if (const size_t i = moved_[static_cast<size_t>(layer)]; i != kStays) mover_->leave(i);
  }
  void emptied() override {
    if (mover_) mover_->forget();
  }
  void add_counters(std::vector<kvp_counter>& out) const override;
  void add_memory(kvp_memory& out) const noexcept override;

  static constexpr size_t kStays = SIZE_MAX;
  Form form_;
  const std::shared_ptr<sdk::DeviceQueue> queue_;
  std::unique_ptr<Mover> mover_;
  std::vector<size_t> moved_;  // of each layer: its number at the mover
};

template <const Choice& kChoice>
OffloadedCache<kChoice>::Form::Form(const kvp_cache_create& create) : plan(create, kChoice.word, kChoice.fixed, true) {
  const sdk::Options options(create.options, create.n_options, {"disk_path", "offload_only_non_sliding"});
  disk_path = options.text("disk_path", "");
  only_non_sliding = options.boolean("offload_only_non_sliding", kChoice.offload_only_non_sliding);
  if (plan.on_device() && !disk_path.empty()) {
    sdk::fail(KVP_UNSUPPORTED, kChoice.word, " on a device keeps K/V in host memory, not in files: leave disk_path '",
              disk_path, "' out, or compute on the CPU");
  }
}

template <const Choice& kChoice>
void OffloadedCache<kChoice>::plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out) {
  const Form form(create);
  const Plan& all = form.plan;
  all.check_plan(tokens);
  if (batch == 0 || tokens == 0) return;
  all.add_books(batch, tokens, out);
  int64_t slot = 0, moved = 0, stay = 0, slow = 0, records = 0, slow_used = 0;
  for (const Spec& spec : all.specs) {
    const int64_t pages = batch * all.pages(spec, tokens);
    if (form.moves(spec)) {
      ++moved;
      slot = std::max(slot, pages * spec.layout.data_bytes());
      slow += pages * spec.layout.data_bytes();
      slow_used += batch * std::min(tokens, all.kept(spec)) * spec.layout.token_bytes();
      records += SwappedPages::record_bytes(pages);
    } else if (all.on_device()) {
      stay += pages * spec.layout.data_bytes();
      records += pages * sdk::DevicePages::kHead;
    } else {
      stay += pages * sdk::HeapPages::page_bytes(spec.layout);
    }
  }
  const int64_t slots = std::min<int64_t>(moved, 2) * slot;
  const auto add = [](uint64_t& to, int64_t bytes) { to += static_cast<uint64_t>(bytes); };
  const int32_t fast = all.tier(), tier = form.slow_tier();
  add(out.reserved[fast][KVP_PURPOSE_KV], stay + slots);
  add(out.used[fast][KVP_PURPOSE_KV], static_cast<int64_t>(out.unquantized) - slow_used + slots);
  add(out.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER], records);
  add(out.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER], records);
  add(out.peak[fast], stay + slots);
  add(out.peak[KVP_TIER_HOST], records);
  add(out.reserved[tier][KVP_PURPOSE_KV], slow);
  add(out.used[tier][KVP_PURPOSE_KV], slow_used);
  add(out.peak[tier], slow);
}

template <const Choice& kChoice>
OffloadedCache<kChoice>::OffloadedCache(const kvp_cache_create& create)
    : OffloadedCache(Form(create), Parts(Form(create), create.owner, nullptr), create.owner) {
  const auto say = [](std::string_view text) {
    sdk::host()->log(sdk::host()->ctx, 1, kChoice.word, text.data(), text.size());
  };
  if (form_.plan.on_device()) {
    if (!mover_) say("no layer is to be offloaded: K/V stay in device memory");
  } else if (form_.disk_path.empty()) {
    say("no accelerator and no disk_path: host memory is the slowest tier there is, K/V stay in it");
  } else if (!mover_) {
    say("no layer is to be offloaded: K/V stay in host memory");
  }
}

template <const Choice& kChoice>
OffloadedCache<kChoice>::Parts::Parts(const Form& form, uint64_t owner, void* stream) {
  if (form.plan.on_device()) queue = form.plan.make_queue(stream);
  if (form.moved() > 0 && queue) {
    mover = std::make_unique<DeviceMover>(queue, form.moved(), owner);
  } else if (form.moved() > 0) {
    mover = std::make_unique<FileMover>(kChoice.open_tier(form.disk_path, form.moved()), owner);
  }
  size_t moved = 0;
  for (const Spec& spec : form.plan.specs) {
    if (form.moves(spec)) {
      stores.push_back(
          std::make_unique<SwappedPages>(spec.layout, *mover, moved++, owner, form.slow_tier(), queue.get()));
    } else if (queue) {
      stores.push_back(std::make_unique<sdk::DevicePages>(spec.layout, owner, queue, kChoice.fixed));
    } else if (kChoice.fixed) {
      stores.push_back(std::make_unique<sdk::SlabPages>(spec.layout, owner));
    } else {
      stores.push_back(std::make_unique<sdk::HeapPages>(spec.layout, owner));
    }
  }
}

template <const Choice& kChoice>
void OffloadedCache<kChoice>::number_layers() {
  size_t moved = 0;
  for (const Spec& spec : form_.plan.specs) moved_.push_back(form_.moves(spec) ? moved++ : kStays);
}

template <const Choice& kChoice>
void OffloadedCache<kChoice>::prefetch(const kvp_call&, int32_t layer) {
  if (layer < 0 || static_cast<size_t>(layer) >= moved_.size()) {
    sdk::fail(KVP_INVALID_ARGUMENT, "layer ", layer, " was hinted at; the cache has ", moved_.size(), " layers");
  }
  if (const size_t i = moved_[static_cast<size_t>(layer)]; i != kStays) mover_->prefetch(i);
}

template <const Choice& kChoice>
void OffloadedCache<kChoice>::add_counters(std::vector<kvp_counter>& out) const {
  const Mover::Counts counts = mover_ ? mover_->counts() : Mover::Counts{};
  out.push_back({"prefetch_hits", counts.prefetch_hits});
  out.push_back({"prefetch_stalls", counts.prefetch_stalls});
  out.push_back({"bytes_moved", counts.bytes_read + counts.bytes_written});
  out.push_back({"bytes_read", counts.bytes_read});
  out.push_back({"bytes_written", counts.bytes_written});
}

template <const Choice& kChoice>
void OffloadedCache<kChoice>::add_memory(kvp_memory& out) const noexcept {
  const auto bytes = static_cast<uint64_t>(mover_ ? mover_->resident_bytes() : 0);
  out.reserved[form_.plan.tier()][KVP_PURPOSE_KV] += bytes;
  out.used[form_.plan.tier()][KVP_PURPOSE_KV] += bytes;
}

}  // namespace kvplug::offloaded
