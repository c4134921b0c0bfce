// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

namespace kvplug {

const char* code_word(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kUnsupported: return "unsupported";
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kInvalidState: return "invalid_state";
    case Code::kCapacity: return "capacity";
    case Code::kCancelled: return "cancelled";
    case Code::kOutOfMemory: return "out_of_memory";
    case Code::kIo: return "io";
    case Code::kCorrupt: return "corrupt";
    case Code::kDevice: return "device";
    case Code::kInternal: return "internal";
    case Code::kPoisoned: return "poisoned";
    case Code::kConfig: return "config";
    case Code::kNotFound: return "not_found";
    case Code::kModel: return "model";
    case Code::kPlanExceeded: return "plan_exceeded";
    case Code::kPlugin: return "plugin";
    case Code::kAbi: return "abi";
    case Code::kBusy: return "busy";
  }
  return "internal";
}

}  // namespace kvplug
