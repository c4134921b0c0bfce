// SPDX-License-Identifier: Apache-2.0
// chat: text to ids and back, chat templates, and the first turn of a conversation, on models/llama_chat.
#include "golden/golden.h"
#include "support/tiny_checkpoint.h"

namespace kvplug::testing {
namespace {

class Chat {
 public:
  explicit Chat(kvplug_host* host) : host_(host), file_("chat"), folder_(model_folder("llama_chat")) {}
  const GoldenFile& file() const { return file_; }
  kvplug_host* host() const { return host_; }
  const std::string& folder() const { return folder_; }
  kvplug_model* model() {
    if (!model_) model_ = load_model(host_, run_document(folder_, {}));
    return model_.get();
  }
  Ids encode(const std::string& text, bool add_special) {
    size_t count = 0;
    client::call(kvplug_model_encode, model(), text.data(), text.size(), uint32_t{add_special}, nullptr, size_t{0},
                 &count);
    Ids ids(count);
    client::call(kvplug_model_encode, model(), text.data(), text.size(), uint32_t{add_special}, ids.data(), ids.size(),
                 &count);
    EXPECT_EQ(count, ids.size());
    return ids;
  }
  std::string decode(const Ids& ids, bool skip_special) {
    return client::text_from(kvplug_model_decode, model(), ids.data(), ids.size(), uint32_t{skip_special});
  }

 private:
  kvplug_host* host_;
  GoldenFile file_;
  std::string folder_;
  client::Model model_;
};

void check_encode(Chat& chat, const json& c) {
  const Ids ids = c["ids"];
  EXPECT_EQ(chat.encode(c["text"], true), ids);
  EXPECT_EQ(chat.decode(ids, false), c["decoded"].get<std::string>());
  EXPECT_EQ(chat.decode(ids, true), c["decoded_skip_special"].get<std::string>());
}

void check_template(Chat& chat, const json& c) {
  const TempFolder folder;
  const std::string path = folder / "template.jinja";
  write_text(path, c["template"]);
  const std::string messages = c["messages"].dump(),
                    options = json{{"chat_template", path},
                                   {"add_generation_prompt", c["add_generation_prompt"]},
                                   {"chat_template_kwargs", c["extra"]}}
                                  .dump();
  const std::string text =
      client::text_from(kvplug_model_chat, chat.model(), messages.data(), messages.size(), options.c_str());
  EXPECT_EQ(text, c["text"].get<std::string>());
  EXPECT_EQ(chat.encode(text, false), c["ids"].get<Ids>());
}

// The batch is padded by the session, never by the tokenizer: the ids without the padding.
void check_batch(Chat& chat, const json& c) {
  for (size_t b = 0; b < c["texts"].size(); ++b) {
    Ids want;
    for (size_t i = 0; i < c["ids"][b].size(); ++i) {
      if (c["attention_mask"][b][i] == 1) want.push_back(c["ids"][b][i]);
    }
    EXPECT_EQ(chat.encode(c["texts"][b], true), want);
  }
}

// Later turns were recorded on a cache that held other ids than the conversation: the first one counts.
void check_first_turn(Chat& chat, const json& c) {
  const json& turn = c["turns"][0];
  const Ids prompt = turn["input_ids"][0], all = turn["sequences"][0];
  const Ids answer(all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end());
  const auto session = make_session(chat.host(), chat.model(),
                                    run_document(chat.folder(), {{"max_new_tokens", 12}, {"eos_token_id", 2}}));
  append_rows(session.get(), {prompt});
  const Play got = play(session.get(), 1);
  EXPECT_EQ(choices(got.rows[0]), answer);
  EXPECT_EQ(chat.decode(answer, true), turn["completion"].get<std::string>());
}

}  // namespace

void add_chat_cases(Tally& tally, kvplug_host* host) {
  const auto chat = std::make_shared<Chat>(host);
  for (const json& c : chat->file().cases) {
    const std::string id = c["id"];
    void (*check)(Chat&, const json&) = id.starts_with("encode/")     ? check_encode
                                        : id.starts_with("template/") ? check_template
                                        : id.starts_with("batch/")    ? check_batch
                                        : id == "iterative/dynamic"   ? check_first_turn
                                                                      : nullptr;
    if (check) {
      tally.run("chat", id, [chat, &c, check] { check(*chat, c); });
    } else {
      tally.skip("chat", "a conversation on another kind than dynamic");
    }
  }
}

}  // namespace kvplug::testing
