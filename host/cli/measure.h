// SPDX-License-Identifier: Apache-2.0
// What the commands bench and diff share: progress, forms of a table, where the answer goes.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/handles.h"

namespace kvplug::cli {

using MeasureCall = kvplug_status (*)(kvplug_host*, const kvplug_config*, const kvplug_measure_params*, kvplug_buf**,
                                      kvp_error*);

struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};
std::string aligned(const Table& table);   // the first column to the left, the others to the right
std::string markdown(const Table& table);  // likewise
std::string csv(const Table& table);

// "quantized nbits=4 q_group_size=32"
std::string cache_text(const nlohmann::json& row);

// How a document of the call becomes an answer: rows for jsonl, a table of bare numbers for csv, one for people, and
// what stands around that in text.
struct Answer {
  const char* rows_key;
  Table (*numbers)(const nlohmann::json& document);
  Table (*table)(const nlohmann::json& document);
  std::string (*before)(const nlohmann::json& document);
  std::string (*after)(const nlohmann::json& document);
};

// Runs `task` of the one run file, writes its answer and returns the document.
nlohmann::json measure(const Arguments& arguments, const char* task, MeasureCall call, const Answer& answer);
// 0, or the code of the first row with an error.
int worst_row(const nlohmann::json& rows);

}  // namespace kvplug::cli
