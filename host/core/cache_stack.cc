// SPDX-License-Identifier: Apache-2.0
#include "core/cache_stack.h"

#include <algorithm>
#include <cmath>

#include "core/cache_instance.h"
#include "core/negotiate.h"
#include "core/registry.h"
#include "core/take_back.h"

namespace kvplug {
namespace {

// Where a call for a layer goes: the instance and the layer's index in it.
struct Route {
  CacheInstance* instance = nullptr;  // null: the layer keeps nothing
  int32_t index = 0;
  bool reads_only = false;  // a SHARED layer: its owner appends
};

bool is_poisoning(Code code) { return KVP_IS_POISONING(static_cast<kvp_status>(code)) && static_cast<int>(code) < 100; }

// What attention will ask of a layer in the usual run, for the probe at creation.
kvp_attend_desc usual_attend(const kvp_layer& layer, const StackParams& params, bool reads_only) {
  kvp_attend_desc desc{};
  desc.struct_size = sizeof desc;
  desc.max_batch = std::max<int64_t>(params.batch, 1);
  desc.max_query = 1;
  desc.q_dtype = desc.out_dtype = params.dtype;
  desc.scale = 1.0F / std::sqrt(static_cast<float>(layer.key_dim));
  desc.flags = reads_only ? 0 : KVP_ATTEND_APPEND;
  if (layer.kind != KVP_LAYER_CROSS) desc.flags |= KVP_ATTEND_CAUSAL;
  if (layer.kind == KVP_LAYER_SLIDING) desc.window = layer.window;
  if (layer.kind == KVP_LAYER_CHUNKED) desc.chunk = layer.window;
  return desc;
}

class Stack final : public CacheStack {
 public:
  Stack(Registry& registry, Layout layout, const StackParams& params) : layout_(std::move(layout)), params_(params) {
    for (const Group& group : layout_.groups) {
      instances_.push_back(std::make_unique<CacheInstance>(registry.host(), group, params));
    }
    route();
    // Slots are the caller's, and no longer needed.
    const auto forget_slots = [](kvp_layer& layer) { layer.slots = nullptr, layer.n_slots = 0; };
    for (kvp_layer& layer : layout_.layers) forget_slots(layer);
    for (Group& group : layout_.groups) {
      for (Part& part : group.parts) forget_slots(part.spec);
    }
  }

  // A copy of `from` around instances that were cloned from its own.
  Stack(const Stack& from, std::vector<std::unique_ptr<CacheInstance>> instances)
      : layout_(from.layout_),
        params_(from.params_),
        instances_(std::move(instances)),
        batch_(from.batch_),
        fused_calls_(from.fused_calls_),
        view_calls_(from.view_calls_),
        prepared_steps_(from.prepared_steps_),
        captured_steps_(from.captured_steps_),
        refused_(from.refused_) {
    route();
  }

  // Asks the plugins what attend will be, once the instances are there, and then holds them to `require`.
  void settle_attend(const CacheChoice& choice) {
    for (LayerPlacement& placed : layout_.placements) {
      if (placed.attend != "fused") continue;
      const Route& to = routes_[static_cast<size_t>(placed.layer)];
      const kvp_layer& layer = layout_.layers[static_cast<size_t>(placed.layer)];
      std::string reason;
      if (can_attend(placed.layer, usual_attend(layer, params_, to.reads_only), &reason)) continue;
      placed.attend = "view";
      placed.reason += (placed.reason.empty() ? "" : "; ") + reason;
    }
    check_required(layout_, choice.require);
  }

  std::span<const kvp_layer> layers() const override { return layout_.layers; }
  int32_t layer_count() const override { return static_cast<int32_t>(layout_.layers.size()); }
  int64_t batch() const override { return batch_; }
  const StackParams& params() const override { return params_; }
  const std::vector<LayerPlacement>& placements() const override { return layout_.placements; }
  kvp_memory planned(std::span<const kvp_layer> layers, const StackParams& params, int64_t batch,
                     int64_t tokens) const override {
    kvp_memory total{};
    total.struct_size = sizeof total;
    for (Group group : layout_.groups) {
      for (Part& part : group.parts) {
        const kvp_layer& given = layers[static_cast<size_t>(part.layer)];
        if (part.spec.kind == KVP_LAYER_STATE) part.spec.slots = given.slots, part.spec.n_slots = given.n_slots;
      }
      add_memory(total, plan_group(group, params, batch, tokens));
    }
    return total;
  }
  std::string unprepared() const override { return why_unprepared(layout_); }
  std::string uncaptured() const override { return refused_.empty() ? why_uncaptured(layout_) : refused_; }
  uint64_t bound() const override { return bound_; }
  bool poisoned() const override { return poisoned_; }

  int64_t seen() const override {
    if (instances_.empty()) return 0;
    kvp_lengths out{};
    out.struct_size = sizeof out;
    instances_.front()->lengths(0, 0, out);
    return out.seen;
  }

  void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) override {
    const Route& to = route_of(layer);
    to.instance->lengths(to.index, query_len, out);
  }

  void update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* view_k, kvp_tensor* view_v) override {
    const Route& to = route_for(args.layer, args.k);
    unbind();
    kvp_update_args mine = args;
    mine.layer = to.index;
    guarded([&] { to.instance->call("update", to.instance->iface().update, &call, &mine, view_k, view_v); });
    if (args.k != nullptr) batch_ = args.k->shape[0];
    if (view_k != nullptr) ++view_calls_;
  }

  bool can_attend(int32_t layer, const kvp_attend_desc& desc, std::string* reason) override {
    const Route& to = route_of(layer);
    const CachePlugin& plugin = to.instance->plugin();
    if (!plugin.attend) {
      if (reason != nullptr) *reason = "\"" + plugin.descriptor.id + "\" has no " KVP_EXT_ATTEND;
      return false;
    }
    kvp_attend_desc mine = desc;
    mine.layer = to.index;
    ErrorText text;
    const kvp_status status = try_plugin(text, plugin.attend->probe, to.instance->self(), &mine);
    if (status == KVP_OK) return true;
    if (status != KVP_UNSUPPORTED) plugin.library->fail("attend.probe", status, text.text());
    if (reason != nullptr) *reason = "\"" + plugin.descriptor.id + "\": " + text.text();
    return false;
  }

  void attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse) override {
    const Route& to = route_for(args.layer, args.k);
    const CachePlugin& plugin = to.instance->plugin();
    if (!plugin.attend) {
      throw Error(Code::kUnsupported, "\"" + plugin.descriptor.id + "\" has no " KVP_EXT_ATTEND,
                  "use update and attend over its views");
    }
    if ((call.flags & KVP_CALL_CAPTURE) == 0) unbind();
    kvp_attend_args mine = args;
    mine.layer = to.index;
    guarded([&] { to.instance->call("attend", plugin.attend->attend, &call, &mine, &out, lse); });
    if (args.k != nullptr) batch_ = args.k->shape[0];
    ++fused_calls_;
  }

  void crop(const kvp_call& call, std::span<const int64_t> n_remove) override {
    if (n_remove.size() != 1 && static_cast<int64_t>(n_remove.size()) != batch_) {
      throw Error(Code::kInvalidArgument, "crop: " + std::to_string(n_remove.size()) +
                                              " counts were given, expected 1 or one for each of " +
                                              std::to_string(batch_) + " rows");
    }
    for (const int64_t count : n_remove) {
      if (count < 0) {
        throw Error(Code::kInvalidArgument, "crop: " + std::to_string(count) + " tokens cannot be removed");
      }
    }
    // Equal counts are one count: every kind can do that, not all take one for each row.
    const bool even = std::all_of(n_remove.begin(), n_remove.end(), [&](int64_t n) { return n == n_remove[0]; });
    const auto n = even ? int64_t{1} : static_cast<int64_t>(n_remove.size());
    change_all(call, [&](const CacheInstance& instance, const kvp_call& how) {
      instance.call("crop", instance.iface().crop, &how, n_remove.data(), n);
    });
  }

  void gather(const kvp_call& call, std::span<const int64_t> src_rows) override {
    for (const int64_t row : src_rows) {
      if (row < -1 || row >= batch_) {
        throw Error(Code::kInvalidArgument, "gather: there is no row " + std::to_string(row) + ", the batch has " +
                                                std::to_string(batch_) + " (-1 makes an empty one)");
      }
    }
    const auto n = static_cast<int64_t>(src_rows.size());
    change_all(call, [&](const CacheInstance& instance, const kvp_call& how) {
      instance.call("gather", instance.iface().gather, &how, src_rows.data(), n);
    });
    if ((call.flags & KVP_CALL_CHECK) == 0) batch_ = n;
  }

  void set_rollback(const kvp_call& call, int64_t max_tokens) override {
    change_all(call, [&](const CacheInstance& instance, const kvp_call& how) {
      instance.call("set_rollback", instance.iface().set_rollback, &how, max_tokens);
    });
  }

  void reserve(const kvp_call& call, int64_t rows, int64_t tokens) override {
    change_all(call, [&](const CacheInstance& instance, const kvp_call& how) {
      instance.call("reserve", instance.iface().reserve, &how, rows, tokens);
    });
  }

  void reset(const kvp_call& call) override {
    unbind();
    poisoned_ = true;  // Until all of them are empty.
    step_.active = false;
    for (const auto& instance : instances_) instance->call("reset", instance->iface().reset, &call);
    batch_ = 0;
    poisoned_ = false;
  }

  std::unique_ptr<CacheStack> clone(const kvp_call& call) override {
    check_alive();
    unbind();
    std::vector<std::unique_ptr<CacheInstance>> copies;
    guarded([&] {
      for (const auto& instance : instances_) copies.push_back(instance->clone(call));
    });
    return std::make_unique<Stack>(*this, std::move(copies));
  }

  kvp_memory memory(int32_t layer) override {
    kvp_memory sum{};
    sum.struct_size = sizeof sum;
    if (layer != -1) check_index(layer);
    for (const auto& instance : instances_) {
      if (layer == -1) add_memory(sum, instance->memory(-1));
      for (size_t i = 0; i < instance->parts().size(); ++i) {
        if (instance->parts()[i].layer == layer) add_memory(sum, instance->memory(static_cast<int32_t>(i)));
      }
    }
    return sum;
  }

  nlohmann::json counters() override {
    nlohmann::json sum = {{"view_attend_calls", view_calls_}, {"prepared_steps", prepared_steps_}};
    if (params_.device_type != KVP_DEVICE_CPU) sum["captured_steps"] = captured_steps_;
    bool fused_told = false;
    for (const auto& instance : instances_) {
      instance->counters([&](const std::string& name, uint64_t value) {
        sum[name] = sum.value(name, uint64_t{0}) + value;
        fused_told = fused_told || name == "fused_attend_calls";
      });
    }
    if (!fused_told) sum["fused_attend_calls"] = fused_calls_;
    return sum;
  }

  void begin_step(const kvp_call& call) override {
    check_alive();
    unbind();
    size_t begun = 0;
    try {
      guarded([&] {
        for (; begun < instances_.size(); ++begun) {
          hint(*instances_[begun], "begin_step", &kvp_offload_ext::begin_step, call);
        }
      });
    } catch (const Error&) {
      for (size_t i = 0; i < begun; ++i) end_quietly(*instances_[i], call);
      throw;
    }
    step_.batch = batch_;
    step_.seen = 0;
    step_.row_seen.resize(static_cast<size_t>(batch_));
    step_.row_pad.resize(static_cast<size_t>(batch_));
    step_.active = true;
    if (batch_ == 0 || instances_.empty()) return;
    kvp_lengths out{};
    out.struct_size = sizeof out;
    out.row_seen = step_.row_seen.data();
    out.row_pad = step_.row_pad.data();
    out.n_rows = step_.row_seen.size();
    instances_.front()->lengths(0, 0, out);
    step_.seen = out.seen;
  }

  void end_step(const kvp_call& call) override {
    guarded([&] {
      for (const auto& instance : instances_) hint(*instance, "end_step", &kvp_offload_ext::end_step, call);
    });
    step_.active = false;
    if ((call.flags & KVP_CALL_PREPARED) != 0) ++prepared_steps_;
  }

  void abort_step(const kvp_call& call) noexcept override {
    if (!step_.active) return;
    step_.active = false;
    if (poisoned_) return;
    for (const auto& instance : instances_) end_quietly(*instance, call);
    try {
      for (const auto& instance : instances_) take_back(*instance, call, step_, params_.dtype);
      batch_ = step_.batch;
    } catch (const std::exception&) {
      poisoned_ = true;
    }
  }

  uint64_t bind_capture(const kvp_call& call, int64_t query_len, const kvp_tensor& row_seen,
                        std::shared_ptr<const void> keep) override {
    check_alive();
    unbind();
    size_t done = 0;
    try {
      guarded([&] {
        for (; done < instances_.size(); ++done) {
          const CacheInstance& instance = *instances_[done];
          instance.call("bind", instance.plugin().capture.value().bind, &call, query_len, &row_seen);
        }
      });
    } catch (const Error&) {
      for (size_t i = 0; i < done; ++i) unbind_quietly(*instances_[i]);
      throw;
    }
    clock_ = std::move(keep);
    return bound_ = ++bindings_;
  }

  void advance_capture(int64_t n_tokens) override {
    check_alive();
    if (bound_ == 0) throw Error(Code::kInvalidState, "no steps are bound");
    size_t done = 0;
    try {
      guarded([&] {
        for (; done < instances_.size(); ++done) {
          const CacheInstance& instance = *instances_[done];
          instance.call("advance", instance.plugin().capture.value().advance, n_tokens);
        }
      });
    } catch (const Error&) {
      poisoned_ = poisoned_ || done != 0;
      throw;
    }
    prepared_steps_ += 1;
    captured_steps_ += 1;
  }

  void end_capture(const std::string& why) override {
    unbind();
    refused_ = why;
  }

 private:
  void unbind() noexcept {
    if (bound_ == 0) return;
    bound_ = 0;
    for (const auto& instance : instances_) unbind_quietly(*instance);
    clock_.reset();
  }
  // It frees what bind took, and has no other way to fail than an instance that is lost anyway.
  static void unbind_quietly(const CacheInstance& instance) noexcept {
    ErrorText text;
    try_plugin(text, instance.plugin().capture.value().unbind, instance.self());
  }

  using StepHint = int32_t (*kvp_offload_ext::*)(kvp_cache*, const kvp_call*, kvp_error*);

  // UNSUPPORTED: the kind does not want this hint.
  static void hint(const CacheInstance& instance, const char* name, StepHint slot, const kvp_call& call) {
    const auto& offload = instance.plugin().offload;
    if (!offload) return;
    ErrorText text;
    const kvp_status status = try_plugin(text, (*offload).*slot, instance.self(), &call);
    if (status != KVP_OK && status != KVP_UNSUPPORTED) instance.plugin().library->fail(name, status, text.text());
  }

  // For a step that has failed already: its own error is the one to tell.
  static void end_quietly(const CacheInstance& instance, const kvp_call& call) noexcept {
    ErrorText text;
    if (instance.plugin().offload) try_plugin(text, instance.plugin().offload->end_step, instance.self(), &call);
  }

  void route() {
    std::vector<Route> own(layout_.layers.size());
    for (const auto& instance : instances_) {
      for (size_t i = 0; i < instance->parts().size(); ++i) {
        const Part& part = instance->parts()[i];
        Route& to = own[static_cast<size_t>(part.layer)];
        // The STATE part of a hybrid yields to its attention part.
        if (to.instance == nullptr || part.spec.kind != KVP_LAYER_STATE) {
          to = {instance.get(), static_cast<int32_t>(i), false};
        }
      }
    }
    for (size_t i = 0; i < own.size(); ++i) {
      const int32_t owner = layout_.owner[i];
      routes_.push_back(owner < 0 ? Route{} : own[static_cast<size_t>(owner)]);
      routes_.back().reads_only = owner >= 0 && static_cast<size_t>(owner) != i;
    }
  }

  void check_index(int32_t layer) const {
    if (layer >= 0 && static_cast<size_t>(layer) < routes_.size()) return;
    throw Error(Code::kInvalidArgument,
                "there is no layer " + std::to_string(layer) + ", the stack has " + std::to_string(routes_.size()));
  }

  const Route& route_of(int32_t layer) const {
    check_index(layer);
    const Route& to = routes_[static_cast<size_t>(layer)];
    if (to.instance == nullptr) {
      throw Error(Code::kInvalidArgument, "layer " + std::to_string(layer) + " keeps no cache");
    }
    return to;
  }

  const Route& route_for(int32_t layer, const kvp_tensor* k) const {
    check_alive();
    const Route& to = route_of(layer);
    if (to.reads_only && k != nullptr) {
      throw Error(Code::kInvalidArgument, "layer " + std::to_string(layer) + " reads the storage of layer " +
                                              std::to_string(layout_.owner[static_cast<size_t>(layer)]) +
                                              " and cannot append to it");
    }
    return to;
  }

  void check_alive() const {
    if (poisoned_) [[unlikely]] {
      throw Error(Code::kPoisoned, "the cache was left half changed by an earlier failure",
                  "reset it, or make a new one");
    }
  }

  template <class Work>
  void guarded(Work work) {
    try {
      work();
    } catch (const Error& error) {
      poisoned_ = poisoned_ || is_poisoning(error.code());
      throw;
    }
  }

  // Asks all instances first. What fails after that leaves the stack half changed, unless it was the first to change.
  template <class Op>
  void change_all(const kvp_call& call, Op op) {
    check_alive();
    unbind();
    kvp_call check = call;
    check.flags |= KVP_CALL_CHECK;
    for (const auto& instance : instances_) op(*instance, check);
    for (const auto& instance : instances_) {
      try {
        op(*instance, call);
      } catch (const Error& error) {
        poisoned_ = is_poisoning(error.code()) || instance != instances_.front();
        throw;
      }
    }
  }

  Layout layout_;
  const StackParams params_;
  std::vector<std::unique_ptr<CacheInstance>> instances_;
  std::vector<Route> routes_;  // one for each layer of the list
  int64_t batch_ = 0;
  uint64_t fused_calls_ = 0, view_calls_ = 0, prepared_steps_ = 0, captured_steps_ = 0;
  uint64_t bound_ = 0, bindings_ = 0;  // the binding there is, and how many there were
  std::shared_ptr<const void> clock_;  // of the binding
  std::string refused_;                // why no steps are recorded any more
  StepMark step_;
  bool poisoned_ = false;
};

}  // namespace

std::unique_ptr<CacheStack> CacheStack::create(Registry& registry, std::span<const kvp_layer> layers,
                                               const CacheChoice& choice, const StackParams& params) {
  auto stack = std::make_unique<Stack>(registry, negotiate(registry, layers, choice, params), params);
  stack->settle_attend(choice);
  return stack;
}

}  // namespace kvplug
