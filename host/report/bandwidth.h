// SPDX-License-Identifier: Apache-2.0
// How fast this machine reads memory, measured here and now: the roof over every decode step.
#pragma once

namespace kvplug::report {

// Bytes a second that `threads` threads read from memory larger than the caches; best of five passes over 512 MiB.
double read_bandwidth(int threads);

}  // namespace kvplug::report
