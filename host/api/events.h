// SPDX-License-Identifier: Apache-2.0
// Events as the C API gives them; text is borrowed from `event`.
#pragma once

#include <kvplug/kvplug.h>

#include "generate/generation.h"

namespace kvplug::api {

kvplug_event event_of(const generate::Event& event);

}  // namespace kvplug::api
