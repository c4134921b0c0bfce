// SPDX-License-Identifier: Apache-2.0
// A cache as the user sees it: all layers of a model, served by one or more plugin instances. It fans every operation
// out to its instances, asks all of them first (KVP_CALL_CHECK) and leaves the stack unchanged when one refuses.
// Layer indices here are positions in the list the stack was made from; NONE layers own nothing, SHARED layers read
// their owner's storage. One thread at a time; no lock is held while a plugin is called.
#pragma once

#include <kvplug/abi.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace kvplug {

class HostServices;
class Registry;

// What the run file says about the cache: the kind and its options as given, before any plugin has checked them.
struct CacheChoice {
  std::string kind = "dynamic";                       // a registered kind; retired words are already mapped
  nlohmann::json options = nlohmann::json::object();  // generation.cache_config
  std::string on_unsupported = "error";               // error | fallback
  std::vector<std::string> fallback;                  // kinds tried in order before the run
  std::vector<std::string> require;                   // capabilities that must really run: "fused_attention", ...
};

struct StackParams {
  int64_t batch = -1;   // expected rows, -1 unknown
  int64_t tokens = -1;  // expected tokens a row; the capacity of fixed kinds; -1 unknown
  int64_t rollback = 0;
  kvp_dtype dtype{};  // dtype of K/V
  int32_t device_type = 1, device_id = 0;
};

// Where one layer landed.
struct LayerPlacement {
  int32_t layer = 0;        // index in the stack's list
  int32_t model_layer = 0;  // index in the model, for messages
  std::string kind;         // HF layer_types word: full_attention, sliding_attention, ...
  std::string plugin;       // cache kind that serves it, empty for NONE
  std::string attend;       // "fused" | "view" | "none"
  std::string reason;       // why not fused, what fused attention does first, or why a fallback was taken
  std::string quantizer_key = {}, quantizer_value = {};  // names; empty: the kind takes none
};

// What one instance is made with, every default filled in.
struct GroupChoice {
  std::string plugin, backend;  // backend: "" where the kind takes no quantizers
  nlohmann::json options, key_options, value_options;
  int64_t token_block = 0;  // as kvp_cache_info
};

// Bytes a stack would hold; answers come from the plugins' pure plan(). [tier][purpose] as in kvp_memory.
struct StackPlan {
  kvp_memory total{};
  std::vector<kvp_memory> layers;  // one per layer of the list (NONE: zeros)
  std::vector<LayerPlacement> placements;
  std::string unprepared;            // as CacheStack::unprepared
  std::string uncaptured;            // as CacheStack::uncaptured
  std::vector<GroupChoice> choices;  // one for each instance
};

class CacheStack {
 public:
  // Loads the plugins and makes quantizers, which end with the call, but no cache. Throws kUnsupported with the
  // plugin's reason, kConfig for bad options.
  static StackPlan plan(Registry& registry, std::span<const kvp_layer> layers, const CacheChoice& choice,
                        const StackParams& params, int64_t batch, int64_t tokens);
  static std::unique_ptr<CacheStack> create(Registry& registry, std::span<const kvp_layer> layers,
                                            const CacheChoice& choice, const StackParams& params);
  virtual ~CacheStack() = default;

  virtual int32_t layer_count() const = 0;
  virtual std::span<const kvp_layer> layers() const = 0;  // as given, borrowed
  virtual int64_t batch() const = 0;                      // rows held now, 0 before the first update
  virtual int64_t seen() const = 0;                       // tokens of the longest row, padding included
  virtual const StackParams& params() const = 0;
  virtual const std::vector<LayerPlacement>& placements() const = 0;
  // What this stack would hold, as plan() has it for one that is yet to be made; no plugin is probed, so what only
  // making a cache needs may be gone by now. layers: those it was made from, for the slots of STATE layers.
  virtual kvp_memory planned(std::span<const kvp_layer> layers, const StackParams& params, int64_t batch,
                             int64_t tokens) const = 0;
  // Why a decode step cannot run prepared (KVP_CALL_PREPARED: no decision, no allocation); "" if it can.
  virtual std::string unprepared() const = 0;

  // What the next update of query_len tokens will present on `layer`. row_seen / row_pad in `out` may be NULL.
  virtual void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) = 0;

  // Append new K/V; args.layer is the stack's index. Views may be NULL = append only.
  virtual void update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* view_k, kvp_tensor* view_v) = 0;
  // True where attend() is served by the plugin (kvp.attend/1 and its probe said yes to `desc`).
  virtual bool can_attend(int32_t layer, const kvp_attend_desc& desc, std::string* reason) = 0;
  virtual void attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse) = 0;

  // All layers are asked first: on a refusal (kvplug::Error) nothing has changed.
  virtual void crop(const kvp_call& call, std::span<const int64_t> n_remove) = 0;  // 1 or batch counts
  virtual void gather(const kvp_call& call, std::span<const int64_t> src_rows) = 0;
  virtual void set_rollback(const kvp_call& call, int64_t max_tokens) = 0;
  virtual void reserve(const kvp_call& call, int64_t batch, int64_t tokens) = 0;
  virtual void reset(const kvp_call& call) = 0;
  virtual std::unique_ptr<CacheStack> clone(const kvp_call& call) = 0;

  virtual kvp_memory memory(int32_t layer) = 0;  // -1 = all
  // Sum over instances, {"fused_attend_calls": n, ...}; the stack adds its own (view_attend_calls, prepared_steps).
  virtual nlohmann::json counters() = 0;

  // A step that failed at some layer is taken back from the layers before it, or the stack is poisoned (and says so).
  // begin_step notes the rows' lengths; abort_step crops back to them. end_step forgets them. All three tell the
  // instances that want to know (kvp.offload/1); what begin_step throws has begun nothing, after end_step throws the
  // step may still be aborted.
  virtual void begin_step(const kvp_call& call) = 0;
  virtual void end_step(const kvp_call& call) = 0;
  virtual void abort_step(const kvp_call& call) noexcept = 0;
  virtual bool poisoned() const = 0;

  // ---- Decode steps recorded into a graph once and replayed (kvp.capture/1), on a device.
  // Why they cannot be; "" if they can, until end_capture said otherwise.
  virtual std::string uncaptured() const { return "this stack records no steps"; }
  // Binds all instances to steps of query_len tokens; row_seen: int32 [batch] on the device, alive as long as `keep`,
  // which is let go when the binding ends. Any call that changes the stack ends it, but attend with KVP_CALL_CAPTURE.
  // Returns bound(). Throws kUnsupported with the plugin's reason.
  virtual uint64_t bind_capture(const kvp_call&, int64_t, const kvp_tensor&, std::shared_ptr<const void>) { return 0; }
  // Counts n_tokens of every row, before they are replayed. Throws kCapacity, nothing counted, where they do not fit.
  virtual void advance_capture(int64_t) {}
  // A number for the binding there is, 0 if there is none.
  virtual uint64_t bound() const { return 0; }
  // Ends the binding; with a reason, which uncaptured() then gives, for good.
  virtual void end_capture(const std::string&) {}
};

}  // namespace kvplug
