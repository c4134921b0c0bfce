// SPDX-License-Identifier: Apache-2.0
#include <kvplug/sdk/device.h>

namespace kvplug::sdk {

const Device* cuda_device() noexcept { return nullptr; }

}  // namespace kvplug::sdk
