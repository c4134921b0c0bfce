// SPDX-License-Identifier: Apache-2.0
// Long runs of one character class on a small stack: regexes that recurse per character would crash here, and ones that
// give up would yield other ids than the reference.
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>

#include "test_data.h"

namespace kvplug::text {
namespace {

constexpr size_t kSmallStack = 512 * 1024;

void on_small_stack(const std::function<void()>& body) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kSmallStack), 0);
  pthread_t thread;
  const auto run = [](void* f) -> void* {
    (*static_cast<const std::function<void()>*>(f))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&body)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string fnv1a(const std::vector<int32_t>& ids) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001B3u;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

TEST(LongRun, IdsEqualTheReference) {
  const auto data = read_data("text/pretokenizers.json");
  size_t checked = 0;
  on_small_stack([&] {
    for (const auto& c : data.at("cases")) {
      if (!c.contains("run")) continue;
      const std::string run = text_at(c, "run"), name = text_at(c, "tokenizer");
      SCOPED_TRACE(name + ": '" + run + "' times " + c.at("times").dump());
      std::string text;
      for (size_t i = 0; i < c.at("times").get<size_t>(); ++i) text += run;
      text += text_at(c, "tail");
      const auto tokenizer = sample_tokenizer(name);
      const auto ids = tokenizer->encode(text, false);
      EXPECT_EQ(ids.size(), c.at("count").get<size_t>());
      EXPECT_EQ(fnv1a(ids), text_at(c, "fnv1a"));
      ++checked;
    }
  });
  EXPECT_EQ(checked, 6u * 7u * 2u);
}

TEST(LongRun, RoundTripOfTheChatModel) {
  const auto tokenizer = chat_tokenizer();
  on_small_stack([&] {
    for (const std::string run : {"Z", " ", "\n", "\xE5\xAD\x97", "\xCC\x81", "7"}) {
      std::string text;
      while (text.size() < 128 * 1024) text += run;
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, true), false), text) << run;
    }
  });
}

}  // namespace
}  // namespace kvplug::text
