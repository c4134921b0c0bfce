// SPDX-License-Identifier: Apache-2.0
#include "cli/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/terminal.h"

namespace kvplug::cli {
namespace {

volatile std::sig_atomic_t interrupts = 0;

void on_interrupt(int) {
  interrupts = interrupts + 1;
  if (interrupts > 1) std::_Exit(130);
}

struct Live {
  ProgressLine loading, measuring;
};

int32_t on_load(void* user, uint64_t done, uint64_t total) {
  static_cast<Live*>(user)->loading.show(done, total);
  return interrupts != 0;
}

int32_t on_measure(void* user, const char* what, uint64_t done, uint64_t total) {
  Live& live = *static_cast<Live*>(user);
  live.loading.clear();
  live.measuring.show_steps(what, done, total);
  return interrupts != 0;
}

std::vector<size_t> widths(const Table& table) {
  std::vector<size_t> out;
  for (const std::string& word : table.head) out.push_back(word.size());
  for (const auto& row : table.rows)
    for (size_t i = 0; i < row.size(); ++i) out[i] = std::max(out[i], row[i].size());
  return out;
}

std::string quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) return cell;
  std::string out = "\"";
  for (const char c : cell) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

std::string aligned(const Table& table) {
  const std::vector<size_t> width = widths(table);
  std::string out;
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text = fmt::format("{:<{}}", row[0], width[0]);
    for (size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], width[i]);
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  line(table.head);
  for (const auto& row : table.rows) line(row);
  return out;
}

std::string markdown(const Table& table) {
  std::string out;
  const auto line = [&](const std::vector<std::string>& row) {
    for (const std::string& cell : row) {
      out += "| ";
      for (const char c : cell) out += c == '|' ? std::string("\\|") : std::string(1, c);
      out += " ";
    }
    out += "|\n";
  };
  line(table.head);
  out += "|---|";
  for (size_t i = 1; i < table.head.size(); ++i) out += "---:|";
  out += "\n";
  for (const auto& row : table.rows) line(row);
  return out;
}

std::string csv(const Table& table) {
  std::string out;
  const auto line = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) out += (i == 0 ? "" : ",") + quoted(row[i]);
    out += "\n";
  };
  line(table.head);
  for (const auto& row : table.rows) line(row);
  return out;
}

std::string cache_text(const nlohmann::json& row) {
  std::string out = row["cache"];
  for (const auto& [key, value] : row["cache_config"].items())
    out += " " + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
  return out;
}

nlohmann::json measure(const Arguments& arguments, const char* task, MeasureCall call_library, const Answer& answer) {
  const Host host = make_host(arguments);
  const Config config = make_config(host.get(), arguments, arguments.files.at(0));
  call(kvplug_config_set, config.get(), "run.task", task);
  const nlohmann::json output = json_from(kvplug_config_get, config.get(), "output");
  const auto setting = [&](const char* key) { return output[key]["value"]; };
  const std::string format = setting("format"),
                    progress = arguments.quiet ? "never" : setting("progress").get<std::string>();
  Output out(setting("path").get<std::string>(), setting("overwrite").get<bool>());
  Live live{{"loading weights", progress}, {"", progress}};
  kvplug_measure_params params{};
  params.struct_size = sizeof params;
  params.progress = on_load;
  params.measure = on_measure;
  params.user = &live;
  std::signal(SIGINT, on_interrupt);
  const nlohmann::json document = json_from(call_library, host.get(), config.get(), &params);
  live.measuring.clear();
  if (format == "json") {
    out.write(document.dump() + "\n");
  } else if (format == "jsonl") {
    for (const auto& row : document[answer.rows_key]) out.write(row.dump() + "\n");
  } else if (format == "csv") {
    out.write(csv(answer.numbers(document)));
  } else if (format == "md") {
    out.write(markdown(answer.table(document)));
  } else {
    out.write(answer.before(document) + aligned(answer.table(document)) + answer.after(document));
  }
  out.finish();
  return document;
}

int worst_row(const nlohmann::json& rows) {
  for (const auto& row : rows) {
    if (!row.contains("error")) continue;
    for (kvplug_status status = 1; status < KVPLUG_END; ++status) {
      if (row["error"]["code"] == kvplug_status_word(status)) return exit_code(status);
    }
    return 1;
  }
  return 0;
}

}  // namespace kvplug::cli
