/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole plugin ABI in one include. Each header also stands alone.
 */
#ifndef KVPLUG_ABI_H
#define KVPLUG_ABI_H

#include "kvplug/cache.h"
#include "kvplug/call.h"
#include "kvplug/error.h"
#include "kvplug/ext/attend.h"
#include "kvplug/ext/capture.h"
#include "kvplug/ext/index.h"
#include "kvplug/ext/offload.h"
#include "kvplug/ext/quant_attend.h"
#include "kvplug/ext/snapshot.h"
#include "kvplug/ext/state.h"
#include "kvplug/host.h"
#include "kvplug/interop_dlpack.h"
#include "kvplug/layer.h"
#include "kvplug/memory.h"
#include "kvplug/options.h"
#include "kvplug/plugin.h"
#include "kvplug/quantizer.h"
#include "kvplug/status.h"
#include "kvplug/tensor.h"
#include "kvplug/version.h"

#endif /* KVPLUG_ABI_H */
