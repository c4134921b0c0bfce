/* SPDX-License-Identifier: Apache-2.0 */
/* The helpers for plugins in C, used from C: error texts of any buffer size, cut at a character; options by key. */
#include <kvplug/sdk/plugin_c.h>
#include <kvplug/status.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

static void check(int ok, const char* what, int line) {
  if (ok) return;
  failures++;
  fprintf(stderr, "line %d: %s\n", line, what);
}
#define CHECK(x) check(x, #x, __LINE__)

static size_t filled(size_t cap, const char* text, char* buf) {
  kvp_error err = {0};
  err.struct_size = sizeof(err);
  err.buf = buf;
  err.cap = cap;
  memset(buf, '#', 64);
  CHECK(kvp_fail(&err, KVP_UNSUPPORTED, "%s", text) == KVP_UNSUPPORTED);
  CHECK(err.code == KVP_UNSUPPORTED);
  CHECK(buf[cap] == '#');
  return err.len;
}

int main(void) {
  char buf[4096];
  kvp_error err = {0};
  kvp_option options[2] = {{0}};
  static const char* const known[] = {"a", NULL};
  size_t cap;

  CHECK(kvp_fail(NULL, KVP_IO, "x") == KVP_IO);
  err.struct_size = sizeof(err);
  CHECK(kvp_fail(&err, KVP_IO, "%d tokens", 12) == KVP_IO && err.len == 9);

  /* "aé€𝄞": 1, 2, 3 and 4 bytes; every buffer ends at a whole character */
  for (cap = 1; cap < 16; cap++) {
    const size_t whole = cap - 1 >= 10 ? 10 : cap - 1 >= 6 ? 6 : cap - 1 >= 3 ? 3 : cap - 1 >= 1 ? 1 : 0;
    CHECK(filled(cap, "a\xC3\xA9\xE2\x82\xAC\xF0\x9D\x84\x9E", buf) == 10);
    CHECK(strlen(buf) == whole);
  }
  /* 1022 + 2 bytes: longer than the helper's own room, which would cut the last character in two */
  {
    char text[1100];
    memset(text, 'x', 1022);
    memcpy(text + 1022, "\xC3\xA9", 3);
    err.buf = buf;
    err.cap = sizeof(buf);
    CHECK(kvp_fail(&err, KVP_IO, "%s", text) == KVP_IO && err.len == 1024 && strlen(buf) == 1022);
  }

  options[0].key = "a";
  options[1].key = "b";
  CHECK(kvp_find_option(options, 2, "b") == &options[1]);
  CHECK(kvp_find_option(options, 2, "c") == NULL);
  CHECK(kvp_unknown_option(options, 2, known) == &options[1]);
  CHECK(kvp_unknown_option(options, 1, known) == NULL);
  return failures == 0 ? 0 : 1;
}
