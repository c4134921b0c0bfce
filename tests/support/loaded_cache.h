// SPDX-License-Identifier: Apache-2.0
// A cache plugin loaded from the build's plugin folder, and an instance of it with short calls that return the status;
// text() is the last error.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <kvplug/abi.h>

#include <string>
#include <utility>
#include <vector>

#include "test_host.h"
#include "values.h"

#if !defined(KVPLUG_TEST_PLUGINS)
#define KVPLUG_TEST_PLUGINS KVPLUG_TEST_BUILD "/plugins/"
#endif

namespace kvplug::test {

// Loads once; never unloads, as the host does.
inline const kvp_plugin* load_plugin(const std::string& file) {
  void* library = dlopen((std::string(KVPLUG_TEST_PLUGINS) + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<kvp_plugin_entry_fn>(dlsym(library, KVP_PLUGIN_ENTRY_NAME));
  const kvp_plugin* plugin = nullptr;
  if (entry == nullptr || entry(TestHost::get().table(), &plugin, nullptr) != KVP_OK) {
    throw std::runtime_error("the entry of " + file + " failed");
  }
  return plugin;
}

struct LayerShape {
  int32_t q_heads, kv_heads, key_dim, value_dim;
  int32_t kind = KVP_LAYER_FULL;
  int64_t window = 0;
};

// A kvp_cache_create with the memory it points at.
struct CreateArgs {
  std::vector<kvp_layer> layers;
  kvp_cache_create create{};

  CreateArgs(const std::vector<LayerShape>& shapes, kvp_dtype dtype, uint64_t owner) {
    for (const LayerShape& s : shapes) {
      kvp_layer layer{};
      layer.struct_size = sizeof layer;
      layer.kind = s.kind;
      layer.q_heads = s.q_heads;
      layer.kv_heads = s.kv_heads;
      layer.key_dim = s.key_dim;
      layer.value_dim = s.value_dim;
      layer.window = s.window;
      layer.model_layer = static_cast<int32_t>(layers.size());
      layers.push_back(layer);
    }
    create.struct_size = sizeof create;
    create.layers = layers.data();
    create.n_layers = layers.size();
    create.layer_stride = sizeof(kvp_layer);
    create.batch = create.tokens = create.rollback = -1;
    create.device_type = KVPLUG_TEST_DEVICE;
    create.dtype = dtype;
    create.owner = owner;
  }
  CreateArgs(const CreateArgs&) = delete;
};

class LoadedCache {
 public:
  LoadedCache(const kvp_cache_iface* iface, const kvp_cache_create& create) : iface_(iface) {
    const int32_t status = iface->create(&create, &self_, error());
    if (status != KVP_OK) throw std::runtime_error("create: " + text());
  }
  LoadedCache(LoadedCache&& other) noexcept
      : iface_(other.iface_), self_(std::exchange(other.self_, nullptr)), call_(other.call_) {}
  LoadedCache& operator=(LoadedCache&& other) noexcept {
    std::swap(iface_, other.iface_);
    std::swap(self_, other.self_);
    std::swap(call_, other.call_);
    return *this;
  }
  ~LoadedCache() { iface_->destroy(self_); }

  const std::string text() const { return text_; }
  kvp_cache* self() const { return self_; }
  void set_call_flags(uint32_t flags) { call_.flags = flags; }

  kvp_lengths lengths(int32_t layer, int64_t query_len, std::vector<int64_t>* seen = nullptr,
                      std::vector<int64_t>* pad = nullptr) {
    kvp_lengths out{};
    out.struct_size = sizeof out;
    if (seen != nullptr) {
      out.row_seen = seen->data();
      out.row_pad = pad->data();
      out.n_rows = seen->size();
    }
    EXPECT_EQ(iface_->lengths(self_, layer, query_len, &out, error()), KVP_OK) << text();
    return out;
  }
  int32_t update(int32_t layer, const Values& k, const Values& v, const int64_t* pad, const int64_t* count,
                 kvp_tensor* out_k, kvp_tensor* out_v) {
    kvp_update_args args{};
    args.struct_size = sizeof args;
    args.layer = layer;
    args.k = &k.t;
    args.v = &v.t;
    args.pad = pad;
    args.count = count;
    return update(args, out_k, out_v);
  }
  int32_t update(const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v) {
    const GuardedMemory::Closed closed;
    return iface_->update(self_, &call_, &args, out_k, out_v, error());
  }
  int32_t gather(const std::vector<int64_t>& src_rows, uint32_t flags = 0) {
    const kvp_call call = with(flags);
    const GuardedMemory::Closed closed;
    return iface_->gather(self_, &call, src_rows.data(), static_cast<int64_t>(src_rows.size()), error());
  }
  int32_t crop(const std::vector<int64_t>& n_remove, uint32_t flags = 0) {
    const kvp_call call = with(flags);
    const GuardedMemory::Closed closed;
    return iface_->crop(self_, &call, n_remove.data(), static_cast<int64_t>(n_remove.size()), error());
  }
  int32_t set_rollback(int64_t n, uint32_t flags = 0) {
    const kvp_call call = with(flags);
    const GuardedMemory::Closed closed;
    return iface_->set_rollback(self_, &call, n, error());
  }
  int32_t reset() {
    const GuardedMemory::Closed closed;
    return iface_->reset(self_, &call_, error());
  }
  int32_t reserve(int64_t batch, int64_t tokens, uint32_t flags = 0) {
    const kvp_call call = with(flags);
    const GuardedMemory::Closed closed;
    return iface_->reserve(self_, &call, batch, tokens, error());
  }
  int32_t clone(uint64_t owner, kvp_cache** out) {
    const GuardedMemory::Closed closed;
    return iface_->clone(self_, &call_, owner, out, error());
  }
  LoadedCache cloned(uint64_t owner) {
    kvp_cache* copy = nullptr;
    EXPECT_EQ(clone(owner, &copy), KVP_OK) << text();
    return LoadedCache(iface_, copy);
  }
  kvp_memory memory(int32_t layer = -1) {
    kvp_memory out{};
    out.struct_size = sizeof out;
    EXPECT_EQ(iface_->memory(self_, layer, &out, error()), KVP_OK) << text();
    return out;
  }
  uint64_t counter(std::string_view name) {
    kvp_counter all[16];
    size_t n = 16;
    EXPECT_EQ(iface_->counters(self_, all, &n), KVP_OK);
    for (size_t i = 0; i < n; ++i) {
      if (name == all[i].name) return all[i].value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }
  int32_t attend_probe(const kvp_attend_desc& desc) { return attend_ext()->probe(self_, &desc, error()); }
  int32_t attend(const kvp_attend_args& args, kvp_tensor* out, kvp_tensor* lse) {
    const GuardedMemory::Closed closed;
    return attend_ext()->attend(self_, &call_, &args, out, lse, error());
  }

 private:
  LoadedCache(const kvp_cache_iface* iface, kvp_cache* self) : iface_(iface), self_(self) {}

  const kvp_attend_ext* attend_ext() const {
    return static_cast<const kvp_attend_ext*>(iface_->get_extension(KVP_EXT_ATTEND));
  }
  kvp_call with(uint32_t flags) const {
    kvp_call call = call_;
    call.flags |= flags;
    return call;
  }
  kvp_error* error() {
    err_.struct_size = sizeof err_;
    err_.buf = text_;
    err_.cap = sizeof text_;
    text_[0] = '\0';
    return &err_;
  }

  const kvp_cache_iface* iface_;
  kvp_cache* self_ = nullptr;
  kvp_call call_{sizeof(kvp_call), KVPLUG_TEST_DEVICE, 0, nullptr, 0, 0};
  kvp_error err_{};
  char text_[512] = "";
};

}  // namespace kvplug::test
