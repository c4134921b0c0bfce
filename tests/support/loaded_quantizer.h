// SPDX-License-Identifier: Apache-2.0
// A quantizer plugin loaded from the build's plugin folder, an instance of it with short calls that return the status,
// and packed data as a cache would hold it; text() is the last error.
#pragma once

#include "loaded_cache.h"

namespace kvplug::test {

inline const kvp_quantizer_iface* quantizer_iface(const std::string& name) {
  const kvp_plugin* plugin = load_plugin(name + ".so");
  return static_cast<const kvp_quantizer_iface*>(plugin->descriptor(0)->iface);
}

inline kvp_option option(const char* key, int64_t value) {
  kvp_option o{};
  o.key = key;
  o.integer = value;
  o.type = KVP_OPTION_INTEGER;
  return o;
}
inline kvp_option option(const char* key, const char* value) {
  kvp_option o{};
  o.key = key;
  o.text = value;
  o.type = KVP_OPTION_TEXT;
  return o;
}

// Parts as planned, with their memory.
struct Packed {
  kvp_qplan plan{};
  std::vector<Reachable<std::byte>> memory;
  std::vector<kvp_qpart> parts;

  explicit Packed(const kvp_qplan& p) : plan(p) {
    for (uint32_t i = 0; i < plan.n_parts; ++i) {
      kvp_qpart part = plan.parts[i];
      size_t bytes = part.t.dtype_bits / 8u;
      for (int32_t d = 0; d < part.t.ndim; ++d) bytes *= static_cast<size_t>(part.t.shape[d]);
      memory.emplace_back(bytes, std::byte{0xaa});
      part.t.data = memory.back().data();
      parts.push_back(part);
    }
  }
};

class LoadedQuantizer {
 public:
  using Options = std::vector<kvp_option>;

  // Throws what create says.
  LoadedQuantizer(const std::string& name, const Options& options, kvp_dtype dtype, int32_t head_dim,
                  int32_t role = KVP_ROLE_KEY, const kvp_qspec* spec = nullptr, int32_t device_type = KVP_DEVICE_CPU)
      : iface_(quantizer_iface(name)) {
    call_.device_type = device_type;
    kvp_qcreate create{};
    create.struct_size = sizeof create;
    create.role = role;
    create.head_dim = head_dim;
    create.spec = spec;
    create.options = options.data();
    create.n_options = options.size();
    create.dtype = dtype;
    create.device_type = device_type;
    status_ = iface_->create(&create, &self_, error());
    if (status_ != KVP_OK) throw std::runtime_error(std::to_string(status_) + ": " + text());
  }
  LoadedQuantizer(const LoadedQuantizer&) = delete;
  ~LoadedQuantizer() { iface_->destroy(self_); }

  std::string text() const { return text_; }
  kvp_quantizer* self() const { return self_; }
  const kvp_quantizer_iface* iface() const { return iface_; }

  kvp_qspec describe() {
    kvp_qspec out{};
    out.struct_size = sizeof out;
    EXPECT_EQ(iface_->describe(self_, &out, error()), KVP_OK) << text();
    return out;
  }
  int32_t plan(const kvp_tensor& in, kvp_qplan* out) {
    *out = {};
    out->struct_size = sizeof *out;
    return iface_->plan(self_, in.shape[0], in.shape[1], in.shape[2], in.shape[3], out, error());
  }
  // Packs; throws what plan or quantize says.
  Packed quantize(const kvp_tensor& in) {
    kvp_qplan planned{};
    int32_t status = plan(in, &planned);
    if (status != KVP_OK) throw std::runtime_error(std::to_string(status) + ": " + text());
    Packed packed(planned);
    status = quantize(in, 0, packed);
    if (status != KVP_OK) throw std::runtime_error(std::to_string(status) + ": " + text());
    return packed;
  }
  int32_t quantize(const kvp_tensor& in, uint32_t flags, const Packed& packed) {
    Reachable<std::byte> memory(packed.plan.workspace_bytes + 64);
    void* work = memory.data();
    size_t room = memory.size();
    work = std::align(64, packed.plan.workspace_bytes, work, room);
    const int32_t status = iface_->quantize(self_, &call_, &in, flags, packed.parts.data(), packed.plan.n_parts,
                                            packed.plan.workspace_bytes == 0 ? nullptr : work, error());
    if (call_.device_type != KVP_DEVICE_CPU) finish_device();
    return status;
  }
  int32_t dequantize(const Packed& packed, kvp_tensor* out) {
    const int32_t status = iface_->dequantize(self_, &call_, packed.parts.data(), packed.plan.n_parts, out, error());
    if (call_.device_type != KVP_DEVICE_CPU) finish_device();
    return status;
  }
  double error_bound() {
    double out = 0;
    EXPECT_EQ(iface_->error_bound(self_, &out, error()), KVP_OK) << text();
    return out;
  }

 private:
  kvp_error* error() {
    err_.struct_size = sizeof err_;
    err_.buf = text_;
    err_.cap = sizeof text_;
    text_[0] = '\0';
    return &err_;
  }

  const kvp_quantizer_iface* iface_;
  kvp_quantizer* self_ = nullptr;
  int32_t status_ = KVP_OK;
  kvp_call call_{sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};
  kvp_error err_{};
  char text_[512] = "";
};

}  // namespace kvplug::test
