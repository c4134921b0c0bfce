// SPDX-License-Identifier: Apache-2.0
// CachePlugin<Cache>: the C interface table "kvp.cache/1" (and "kvp.attend/1") made from a C++ class.
//
// The class is written in plain C++ and throws Faults; this adds what every plugin needs at the border: exceptions
// become statuses, structs of other versions are read and written whole, out-parameters are written on success only,
// and an instance that failed with DEVICE, INTERNAL or worse answers POISONED until reset. Cache has
//   static void probe(const kvp_cache_create&, kvp_cache_info& out);
//   static void plan(const kvp_cache_create&, int64_t batch, int64_t tokens, kvp_memory& out);
//   explicit Cache(const kvp_cache_create&);
//   void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const;     (row arrays in `out` are the caller's)
//   void update(const kvp_call&, const kvp_update_args&, kvp_tensor* out_k, kvp_tensor* out_v);
//   void reset(const kvp_call&);                                                (from any state)
//   void gather(const kvp_call&, const int64_t* src_rows, int64_t n);
//   void crop(const kvp_call&, const int64_t* n_remove, int64_t n);
//   void set_rollback(const kvp_call&, int64_t max_tokens);
//   std::unique_ptr<Cache> clone(const kvp_call&, uint64_t owner) const;
//   void reserve(const kvp_call&, int64_t batch, int64_t tokens);
//   void memory(int32_t layer, kvp_memory& out) const;
//   size_t counters(kvp_counter* out, size_t room) const noexcept;              (returns how many there are)
//   static const void* extension(std::string_view id) noexcept;
// and, if extension() hands out attend_extension(), capture_extension() or offload_extension(),
//   void attend_probe(const kvp_attend_desc&) const;
//   void attend(const kvp_call&, const kvp_attend_args&, kvp_tensor& out, kvp_tensor* lse);
//   void begin_step(const kvp_call&), prefetch(const kvp_call&, int32_t layer), end_step(const kvp_call&);
#pragma once

#include <kvplug/sdk/status.h>
#include <kvplug/sdk/structs.h>

#include <memory>
#include <string_view>

namespace kvplug::sdk {

template <class Cache>
class CachePlugin {
 public:
  static const kvp_cache_iface* iface() noexcept {
    static const kvp_cache_iface table = make_iface();
    return &table;
  }
  static const kvp_attend_ext* attend_extension() noexcept {
    static const kvp_attend_ext table = {sizeof(kvp_attend_ext), attend_probe, attend};
    return &table;
  }
  static const kvp_capture_ext* capture_extension() noexcept {
    static const kvp_capture_ext table = {sizeof(kvp_capture_ext), capture_bind, capture_advance, capture_unbind};
    return &table;
  }
  static const kvp_offload_ext* offload_extension() noexcept {
    static const kvp_offload_ext table = {sizeof(kvp_offload_ext), begin_step, prefetch, end_step};
    return &table;
  }

 private:
  struct Instance {
    std::unique_ptr<Cache> cache;
    bool poisoned = false;
  };

  static Instance* instance(kvp_cache* self) noexcept { return reinterpret_cast<Instance*>(self); }

  // Runs body(cache) on an instance that is not poisoned.
  template <class Body>
  static kvp_status on(kvp_cache* self, kvp_error* err, Body&& body) noexcept {
    Instance* inst = instance(self);
    const kvp_status status = guard(err, [&] {
      if (inst->poisoned) fail(KVP_POISONED, "an earlier call lost this cache; only reset and destroy are possible");
      body(*inst->cache);
    });
    if (KVP_IS_POISONING(status)) inst->poisoned = true;
    return status;
  }

  static int32_t probe(const kvp_cache_create* create, kvp_cache_info* out, kvp_error* err) {
    return guard(err, [&] {
      kvp_cache_info info{};
      Cache::probe(read_struct(create), info);
      write_struct(info, out);
    });
  }
  static int32_t plan(const kvp_cache_create* create, int64_t batch, int64_t tokens, kvp_memory* out, kvp_error* err) {
    return guard(err, [&] {
      if (batch < 0 || tokens < 0) fail(KVP_INVALID_ARGUMENT, "plan for batch ", batch, " and ", tokens, " tokens");
      kvp_memory memory{};
      Cache::plan(read_struct(create), batch, tokens, memory);
      write_struct(memory, out);
    });
  }
  static int32_t create(const kvp_cache_create* create, kvp_cache** self, kvp_error* err) {
    return guard(err, [&] {
      auto made = std::make_unique<Instance>();
      made->cache = std::make_unique<Cache>(read_struct(create));
      *self = reinterpret_cast<kvp_cache*>(made.release());
    });
  }
  static void destroy(kvp_cache* self) { delete instance(self); }

  static int32_t lengths(kvp_cache* self, int32_t layer, int64_t query_len, kvp_lengths* out, kvp_error* err) {
    return on(self, err, [&](const Cache& cache) {
      kvp_lengths answer = read_struct(out);
      cache.lengths(layer, query_len, answer);
      write_struct(answer, out);
    });
  }
  static int32_t update(kvp_cache* self, const kvp_call* call, const kvp_update_args* args, kvp_tensor* out_k,
                        kvp_tensor* out_v, kvp_error* err) {
    return on(self, err, [&](Cache& cache) {
      if ((out_k == nullptr) != (out_v == nullptr)) fail(KVP_INVALID_ARGUMENT, "a view of one of K and V alone");
      cache.update(read_struct(call), read_struct(args), out_k, out_v);
    });
  }
  static int32_t reset(kvp_cache* self, const kvp_call* call, kvp_error* err) {
    Instance* inst = instance(self);
    const kvp_status status = guard(err, [&] { inst->cache->reset(read_struct(call)); });
    inst->poisoned = KVP_IS_POISONING(status);
    return status;
  }
  static int32_t gather(kvp_cache* self, const kvp_call* call, const int64_t* src_rows, int64_t n, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.gather(read_struct(call), src_rows, n); });
  }
  static int32_t crop(kvp_cache* self, const kvp_call* call, const int64_t* n_remove, int64_t n, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.crop(read_struct(call), n_remove, n); });
  }
  static int32_t set_rollback(kvp_cache* self, const kvp_call* call, int64_t max_tokens, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.set_rollback(read_struct(call), max_tokens); });
  }
  static int32_t clone(kvp_cache* self, const kvp_call* call, uint64_t owner, kvp_cache** out, kvp_error* err) {
    return on(self, err, [&](const Cache& cache) {
      auto made = std::make_unique<Instance>();
      made->cache = cache.clone(read_struct(call), owner);
      *out = reinterpret_cast<kvp_cache*>(made.release());
    });
  }
  static int32_t reserve(kvp_cache* self, const kvp_call* call, int64_t batch, int64_t tokens, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.reserve(read_struct(call), batch, tokens); });
  }
  static int32_t memory(kvp_cache* self, int32_t layer, kvp_memory* out, kvp_error* err) {
    return on(self, err, [&](const Cache& cache) {
      kvp_memory memory{};
      cache.memory(layer, memory);
      write_struct(memory, out);
    });
  }
  static int32_t counters(kvp_cache* self, kvp_counter* out, size_t* n) {
    *n = instance(self)->cache->counters(out, out == nullptr ? 0 : *n);
    return KVP_OK;
  }
  static const void* get_extension(const char* id) { return id == nullptr ? nullptr : Cache::extension(id); }

  static int32_t attend_probe(kvp_cache* self, const kvp_attend_desc* desc, kvp_error* err) {
    return on(self, err, [&](const Cache& cache) { cache.attend_probe(read_struct(desc)); });
  }
  static int32_t attend(kvp_cache* self, const kvp_call* call, const kvp_attend_args* args, kvp_tensor* out,
                        kvp_tensor* lse, kvp_error* err) {
    return on(self, err, [&](Cache& cache) {
      if (out == nullptr) fail(KVP_INVALID_ARGUMENT, "attend without a tensor for the result");
      cache.attend(read_struct(call), read_struct(args), *out, lse);
    });
  }

  static int32_t capture_bind(kvp_cache* self, const kvp_call* call, int64_t query_len, const kvp_tensor* row_seen,
                              kvp_error* err) {
    return on(self, err, [&](Cache& cache) {
      if (row_seen == nullptr) fail(KVP_INVALID_ARGUMENT, "bind without row_seen");
      cache.capture_bind(read_struct(call), query_len, *row_seen);
    });
  }
  static int32_t capture_advance(kvp_cache* self, int64_t n_tokens, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.capture_advance(n_tokens); });
  }
  static int32_t capture_unbind(kvp_cache* self, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.capture_unbind(); });
  }

  static int32_t begin_step(kvp_cache* self, const kvp_call* call, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.begin_step(read_struct(call)); });
  }
  static int32_t prefetch(kvp_cache* self, const kvp_call* call, int32_t layer, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.prefetch(read_struct(call), layer); });
  }
  static int32_t end_step(kvp_cache* self, const kvp_call* call, kvp_error* err) {
    return on(self, err, [&](Cache& cache) { cache.end_step(read_struct(call)); });
  }

  static kvp_cache_iface make_iface() noexcept {
    kvp_cache_iface t{};
    t.struct_size = sizeof t;
    t.probe = probe;
    t.plan = plan;
    t.create = create;
    t.destroy = destroy;
    t.lengths = lengths;
    t.update = update;
    t.reset = reset;
    t.gather = gather;
    t.crop = crop;
    t.set_rollback = set_rollback;
    t.clone = clone;
    t.reserve = reserve;
    t.memory = memory;
    t.counters = counters;
    t.get_extension = get_extension;
    return t;
  }
};

}  // namespace kvplug::sdk
