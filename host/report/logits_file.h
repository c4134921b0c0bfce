// SPDX-License-Identifier: Apache-2.0
// [output] logits_path: a safetensors file with tensor `<prompt id>.0` [new_tokens, vocab] float32 for each prompt, the
// raw logits before processors. Written beside its place and renamed, so that no half-written file is left.
#pragma once

#include <string>

#include "generate/task.h"

namespace kvplug::report {

// Throws kConfig when the file exists and may not be overwritten, kIo when its folder does not exist.
void check_writable(const std::string& path, bool overwrite);
void write_logits(const std::string& path, const generate::TaskResult& task, int64_t vocab);

}  // namespace kvplug::report
