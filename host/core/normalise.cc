// SPDX-License-Identifier: Apache-2.0
#include "core/normalise.h"

#include "core/error_buffer.h"

namespace kvplug {
namespace {

kvp_status unsupported(kvp_error* err, const char* slot) {
  return write_error(err, KVP_UNSUPPORTED, std::string("this cache has no ") + slot);
}

// Throws for the first NULL among the named slots.
class Slots {
 public:
  Slots(const std::string& name, const std::filesystem::path& library) : name_(name), library_(library) {}

  template <class Fn>
  Slots& need(Fn slot, const char* word) {
    if (slot == nullptr) {
      throw Error(Code::kPlugin, name_ + ": the required function " + word + " is missing", {}, library_.string());
    }
    return *this;
  }

 private:
  const std::string& name_;
  const std::filesystem::path& library_;
};

template <class Fn>
void fill(Fn& slot, Fn substitute) {
  if (slot == nullptr) slot = substitute;
}

}  // namespace

std::string required_text(const char* text, const std::string& name, const std::filesystem::path& library) {
  if (text == nullptr || *text == '\0') throw Error(Code::kPlugin, name + " is missing", {}, library.string());
  return valid_utf8(text);
}

kvp_cache_iface normalise_cache(const void* given, const std::string& name, const std::filesystem::path& library) {
  auto table = copy_table<kvp_cache_iface>(given, name, library);
  Slots(name, library)
      .need(table.probe, "probe")
      .need(table.plan, "plan")
      .need(table.create, "create")
      .need(table.destroy, "destroy")
      .need(table.lengths, "lengths")
      .need(table.update, "update")
      .need(table.reset, "reset")
      .need(table.memory, "memory")
      .need(table.get_extension, "get_extension");
  fill(
      table.gather, +[](kvp_cache*, const kvp_call*, const int64_t*, int64_t, kvp_error* err) -> int32_t {
        return unsupported(err, "gather");
      });
  fill(
      table.crop, +[](kvp_cache*, const kvp_call*, const int64_t*, int64_t, kvp_error* err) -> int32_t {
        return unsupported(err, "crop");
      });
  fill(
      table.set_rollback, +[](kvp_cache*, const kvp_call*, int64_t, kvp_error* err) -> int32_t {
        return unsupported(err, "set_rollback");
      });
  fill(
      table.clone, +[](kvp_cache*, const kvp_call*, uint64_t, kvp_cache**, kvp_error* err) -> int32_t {
        return unsupported(err, "clone");
      });
  fill(
      table.reserve, +[](kvp_cache*, const kvp_call*, int64_t, int64_t, kvp_error* err) -> int32_t {
        return unsupported(err, "reserve");
      });
  fill(
      table.counters, +[](kvp_cache*, kvp_counter*, size_t* n) -> int32_t {
        *n = 0;
        return KVP_OK;
      });
  return table;
}

kvp_quantizer_iface normalise_quantizer(const void* given, const std::string& name,
                                        const std::filesystem::path& library) {
  auto table = copy_table<kvp_quantizer_iface>(given, name, library);
  Slots(name, library)
      .need(table.spec_count, "spec_count")
      .need(table.spec_range, "spec_range")
      .need(table.create, "create")
      .need(table.destroy, "destroy")
      .need(table.describe, "describe")
      .need(table.plan, "plan")
      .need(table.quantize, "quantize")
      .need(table.dequantize, "dequantize")
      .need(table.error_bound, "error_bound");
  fill(table.get_extension, +[](const char*) -> const void* { return nullptr; });
  return table;
}

std::optional<kvp_attend_ext> normalise_attend(const void* given, const std::string& name,
                                               const std::filesystem::path& library) {
  if (given == nullptr) return std::nullopt;
  const std::string extension = name + " " KVP_EXT_ATTEND;
  auto table = copy_table<kvp_attend_ext>(given, extension, library);
  Slots(extension, library).need(table.probe, "probe").need(table.attend, "attend");
  return table;
}

std::optional<kvp_qattend_ext> normalise_quant_attend(const void* given, const std::string& name,
                                                      const std::filesystem::path& library) {
  if (given == nullptr) return std::nullopt;
  const std::string extension = name + " " KVP_EXT_QUANT_ATTEND;
  auto table = copy_table<kvp_qattend_ext>(given, extension, library);
  Slots(extension, library).need(table.probe, "probe").need(table.attend, "attend");
  return table;
}

std::optional<kvp_offload_ext> normalise_offload(const void* given, const std::string& name,
                                                 const std::filesystem::path& library) {
  if (given == nullptr) return std::nullopt;
  auto table = copy_table<kvp_offload_ext>(given, name + " " KVP_EXT_OFFLOAD, library);
  fill(
      table.begin_step,
      +[](kvp_cache*, const kvp_call*, kvp_error* err) -> int32_t { return unsupported(err, "begin_step"); });
  fill(
      table.prefetch,
      +[](kvp_cache*, const kvp_call*, int32_t, kvp_error* err) -> int32_t { return unsupported(err, "prefetch"); });
  fill(
      table.end_step,
      +[](kvp_cache*, const kvp_call*, kvp_error* err) -> int32_t { return unsupported(err, "end_step"); });
  return table;
}

std::optional<kvp_capture_ext> normalise_capture(const void* given, const std::string& name,
                                                 const std::filesystem::path& library) {
  if (given == nullptr) return std::nullopt;
  const std::string extension = name + " " KVP_EXT_CAPTURE;
  auto table = copy_table<kvp_capture_ext>(given, extension, library);
  Slots(extension, library).need(table.bind, "bind").need(table.advance, "advance").need(table.unbind, "unbind");
  return table;
}

}  // namespace kvplug
