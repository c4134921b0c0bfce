// SPDX-License-Identifier: Apache-2.0
// Takes the hints of kvp.offload/1 and counts them; begin_step fails when fail_layer is 9. It has no prefetch.
#include "plain_cache.h"

namespace {

uint64_t g_begun = 0, g_ended = 0;

const kvp_offload_ext kOffload = {sizeof(kvp_offload_ext),
                                  [](kvp_cache* self, const kvp_call*, kvp_error* err) -> int32_t {
                                    const plain::Options& options = plain::as(self)->options;
                                    if (options.fail_layer == 9) {
                                      return plain::say(err, static_cast<int32_t>(options.fail_status),
                                                        "no step is to be begun");
                                    }
                                    ++g_begun;
                                    return KVP_OK;
                                  },
                                  nullptr,
                                  [](kvp_cache*, const kvp_call*, kvp_error*) -> int32_t {
                                    ++g_ended;
                                    return KVP_OK;
                                  }};

const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  iface.get_extension = [](const char* id) -> const void* {
    return std::string(id) == KVP_EXT_OFFLOAD ? &kOffload : nullptr;
  };
  iface.counters = [](kvp_cache*, kvp_counter* out, size_t* n) -> int32_t {
    if (out != nullptr && *n > 1) {
      out[0] = {"begun", g_begun};
      out[1] = {"ended", g_ended};
    }
    *n = 2;
    return KVP_OK;
  };
  return iface;
}();

}  // namespace
PLAIN_ENTRY("hinting", g_iface)
