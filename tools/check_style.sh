#!/bin/sh
# check_style.sh SOURCE_DIR: files of at most 1,000 lines, no tabs, no trailing blanks, lines of at most
# 120 characters in C; no folder or file named utils, common, misc or helpers; no file above 1 MiB but the bundled
# model; no test draws from the clock (tests/seed.h).
set -eu
cd "$1"
failed=0
complain() { # path message
  echo "$1: $2"; failed=1
}
files=$(find $(ls -d src include examples tests bench 2>/dev/null) -name '*.[ch]' -o -name '*.cu')
for f in $files; do
  case "$f" in *utils*|*common*|*misc*|*helpers*) complain "$f" "names no noun" ;; esac
done
# All files by one program: four for each file took twelve seconds.
awk 'function complain(text) { print text; failed = 1 }
     function end_file() { if (lines > 1000) complain(name ": " lines " lines, at most 1000") }
     FNR == 1 { end_file(); name = FILENAME; tab = blank = long = 0 }
     { lines = FNR }
     !tab && /\t/ { complain(name ": has a tab"); tab = 1 }
     !blank && / $/ { complain(name ": has trailing blanks"); blank = 1 }
     !long && length($0) > 120 { complain(name ":" FNR ": longer than 120 characters"); long = 1 }
     END { end_file(); exit failed }' $files || failed=1
for f in $(find $(ls -d src include tests bench docs tools models cmake 2>/dev/null) -type f -size +1024k); do
  [ "$f" = models/loam-nano.gguf ] || git check-ignore -q "$f" 2>/dev/null || complain "$f" "more than 1 MiB; only the bundled model may be"
done
for f in $(grep -rlE 'LOAM_TEST_SEED"|[^_]time\(NULL\)|[^_]time\(0\)|urandom' tests --include='*.[ch]'); do
  [ "$f" = tests/seed.h ] || complain "$f" "draws a seed of its own; tests/seed.h has them"
done
exit $failed
