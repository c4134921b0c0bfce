// SPDX-License-Identifier: Apache-2.0
// QuantizerPlugin<Q>: the C interface table "kvp.quantizer/1" (and "kvp.quant-attend/1") made from a C++ class.
//
// The class is written in plain C++ and throws Faults; this adds what every plugin needs at the border: exceptions
// become statuses, structs of other versions are read and written whole, out-parameters are written on success only,
// and what both sides of every quantizer must agree on is checked. Q is immutable once made, and has
//   static uint32_t spec_count() noexcept;
//   static void spec_range(uint32_t i, kvp_qspec& low, kvp_qspec& high);         (i < spec_count())
//   static std::string refusal(int32_t device_type);                             (empty: it works there; or why not)
//   explicit Q(const kvp_qcreate&);
//   void describe(kvp_qspec& out) const;
//   void plan(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan& out) const;
//   void quantize(const kvp_call&, const kvp_tensor& in, uint32_t flags, const kvp_qpart* parts, uint32_t n_parts,
//                 void* workspace) const;
//   void dequantize(const kvp_call&, const kvp_qpart* parts, uint32_t n_parts, kvp_tensor& out) const;
//   double error_bound() const;
//   static const void* extension(std::string_view id) noexcept;
// and, if extension() hands out attend_extension(),
//   uint64_t attend_probe(const Q& values, const kvp_qattend_desc&) const;       (returns the bytes of workspace)
//   void attend(const Q& values, const kvp_call&, const kvp_qattend_args&, kvp_tensor& out, kvp_tensor& lse) const;
// where `values` is the value quantizer, of the same plugin.
#pragma once

#include <kvplug/sdk/status.h>
#include <kvplug/sdk/structs.h>

#include <memory>
#include <string_view>

namespace kvplug::sdk {

template <class Q>
class QuantizerPlugin {
 public:
  static const kvp_quantizer_iface* iface() noexcept {
    static const kvp_quantizer_iface table = make_iface();
    return &table;
  }
  static const kvp_qattend_ext* attend_extension() noexcept {
    static const kvp_qattend_ext table = {sizeof(kvp_qattend_ext), attend_probe, attend};
    return &table;
  }

 private:
  static const Q& of(const kvp_quantizer* self) noexcept { return *reinterpret_cast<const Q*>(self); }

  // The value quantizer, if it is one of ours.
  static const Q& values_of(const kvp_qhandle* v) {
    if (v == nullptr) fail(KVP_INVALID_ARGUMENT, "the handle of the value quantizer is missing");
    const kvp_qhandle handle = read_struct(v);
    // Hosts hand out checked copies of a plugin's table: the functions tell whose it is.
    if (handle.iface == nullptr || handle.iface->quantize != iface()->quantize) {
      fail(KVP_UNSUPPORTED, "the values are packed by '", handle.id == nullptr ? "another plugin" : handle.id,
           "'; attention over packed data needs one plugin for keys and values");
    }
    return of(handle.self);
  }

  static uint32_t spec_count() { return Q::spec_count(); }
  static int32_t spec_range(uint32_t i, kvp_qspec* low, kvp_qspec* high, kvp_error* err) {
    return guard(err, [&] {
      if (i >= Q::spec_count()) fail(KVP_INVALID_ARGUMENT, "range ", i, " of ", Q::spec_count());
      kvp_qspec first{}, last{};
      Q::spec_range(i, first, last);
      write_struct(first, low);
      write_struct(last, high);
    });
  }
  static int32_t create(const kvp_qcreate* create, kvp_quantizer** self, kvp_error* err) {
    return guard(err, [&] {
      const kvp_qcreate args = read_struct(create);
      if (args.role != KVP_ROLE_KEY && args.role != KVP_ROLE_VALUE) {
        fail(KVP_INVALID_ARGUMENT, "role ", args.role, "; expected ", KVP_ROLE_KEY, " (keys) or ", KVP_ROLE_VALUE,
             " (values)");
      }
      if (const std::string why = Q::refusal(args.device_type); !why.empty()) fail(KVP_UNSUPPORTED, why);
      auto made = std::make_unique<Q>(args);
      *self = reinterpret_cast<kvp_quantizer*>(made.release());
    });
  }
  static void destroy(kvp_quantizer* self) { delete reinterpret_cast<Q*>(self); }
  static int32_t describe(kvp_quantizer* self, kvp_qspec* out, kvp_error* err) {
    return guard(err, [&] {
      kvp_qspec spec{};
      of(self).describe(spec);
      write_struct(spec, out);
    });
  }
  static int32_t plan(kvp_quantizer* self, int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim,
                      kvp_qplan* out, kvp_error* err) {
    return guard(err, [&] {
      if (batch < 0 || kv_heads < 0 || tokens < 0 || head_dim < 1) {
        fail(KVP_INVALID_ARGUMENT, "plan for [", batch, ", ", kv_heads, ", ", tokens, ", ", head_dim, "]");
      }
      kvp_qplan plan{};
      of(self).plan(batch, kv_heads, tokens, head_dim, plan);
      write_struct(plan, out);
    });
  }
  static int32_t quantize(kvp_quantizer* self, const kvp_call* call, const kvp_tensor* in, uint32_t flags,
                          const kvp_qpart* parts, uint32_t n_parts, void* workspace, kvp_error* err) {
    return guard(err, [&] {
      if (in == nullptr) fail(KVP_INVALID_ARGUMENT, "quantize without a tensor");
      if ((flags & ~uint32_t{KVP_Q_KEEP_SCALE}) != 0) fail(KVP_INVALID_ARGUMENT, "quantize with unknown flags ", flags);
      of(self).quantize(read_struct(call), *in, flags, parts, n_parts, workspace);
    });
  }
  static int32_t dequantize(kvp_quantizer* self, const kvp_call* call, const kvp_qpart* parts, uint32_t n_parts,
                            kvp_tensor* out, kvp_error* err) {
    return guard(err, [&] {
      if (out == nullptr) fail(KVP_INVALID_ARGUMENT, "dequantize without a tensor for the result");
      of(self).dequantize(read_struct(call), parts, n_parts, *out);
    });
  }
  static int32_t error_bound(kvp_quantizer* self, double* out, kvp_error* err) {
    return guard(err, [&] { *out = of(self).error_bound(); });
  }
  static const void* get_extension(const char* id) { return id == nullptr ? nullptr : Q::extension(id); }

  static int32_t attend_probe(kvp_quantizer* self, const kvp_qhandle* v, const kvp_qattend_desc* desc,
                              uint64_t* workspace_bytes, kvp_error* err) {
    return guard(err, [&] { *workspace_bytes = of(self).attend_probe(values_of(v), read_struct(desc)); });
  }
  static int32_t attend(kvp_quantizer* self, const kvp_qhandle* v, const kvp_call* call, const kvp_qattend_args* args,
                        kvp_tensor* out, kvp_tensor* lse, kvp_error* err) {
    return guard(err, [&] {
      if (out == nullptr || lse == nullptr) fail(KVP_INVALID_ARGUMENT, "attend without tensors for out and lse");
      of(self).attend(values_of(v), read_struct(call), read_struct(args), *out, *lse);
    });
  }

  static kvp_quantizer_iface make_iface() noexcept {
    kvp_quantizer_iface t{};
    t.struct_size = sizeof t;
    t.spec_count = spec_count;
    t.spec_range = spec_range;
    t.create = create;
    t.destroy = destroy;
    t.describe = describe;
    t.plan = plan;
    t.quantize = quantize;
    t.dequantize = dequantize;
    t.error_bound = error_bound;
    t.get_extension = get_extension;
    return t;
  }
};

}  // namespace kvplug::sdk
