# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of tools/ and .ci/, from the root of the tree: `source tools/steps.sh <name>`.
#   say TEXT         a line with the name and the elapsed seconds, on stderr
#   step TEXT HINT   announces a step; a failure before the next one names it and gives the hint
#   fail TEXT HINT   ends the script
#   quietly CMD...   shows the output only when the command fails
steps_name=$1
steps_start=$SECONDS
steps_now="starting"
steps_hint=""
export PATH="$PATH:$HOME/.cargo/bin:/usr/local/go/bin"

say() { printf '[%s %4ss] %s\n' "$steps_name" $((SECONDS - steps_start)) "$*" >&2; }
step() {
  steps_now=$1 steps_hint=$2
  say "$1"
}
fail() {
  say "FAILED: $1"
  printf '%*s%s\n' $((${#steps_name} + 9)) '' "$2" >&2
  exit 1
}
trap 'fail "$steps_now" "$steps_hint"' ERR

quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  ((status == 0)) || cat "$log" >&2
  rm -f "$log"
  return $status
}
