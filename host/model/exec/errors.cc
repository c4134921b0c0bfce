// SPDX-License-Identifier: Apache-2.0
#include "model/exec/errors.h"

#include <c10/util/Exception.h>

#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "core/error.h"

namespace kvplug::model {

void rethrow_translated() {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const dnnl::error& e) {
    const Code code = e.status == dnnl_out_of_memory ? Code::kOutOfMemory : Code::kInternal;
    throw Error(code, std::string("oneDNN: ") + e.what());
  } catch (const c10::OutOfMemoryError& e) {
    throw Error(Code::kOutOfMemory, std::string("LibTorch: ") + e.what_without_backtrace());
  } catch (const c10::Error& e) {
    throw Error(Code::kInternal, std::string("LibTorch: ") + e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    throw Error(Code::kOutOfMemory, "no memory left");
  } catch (const std::exception& e) {
    throw Error(Code::kInternal, e.what());
  }
}

}  // namespace kvplug::model
