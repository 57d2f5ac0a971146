#!/bin/sh
# fuzz_seeds.sh BUILD [NAME...]: every randomised test (BUILD/seeded_tests.txt), or those named, with FUZZ_SEEDS (200)
# random seeds each, FUZZ_JOBS (2) at a time.  Each seed of a long test has one of FUZZ_DIVISOR (16) of its rounds
# (tests/seed.h).  What fails is shown with the command that repeats it; the last line is
# "N passed, N failed", by seeds.  Part of `./do fuzz`.
set -eu
build=$1; shift
seeds=${FUZZ_SEEDS:-200} divisor=${FUZZ_DIVISOR:-16}
logs=$build/seeds
mkdir -p "$logs"

# one NAME PROGRAM SEED: run by xargs, in $build like ctest's.
if [ "${1:-}" = --one ]; then
  log=$logs/$2-$4.log
  if (cd "$build" && LOAM_TEST_SEED=$4 LOAM_TEST_DIVISOR=$divisor timeout "${FUZZ_TIMEOUT:-1200}" "$3") >"$log" 2>&1
  then rc=0; else rc=$?; fi
  case $rc in
    0) rm "$log"; echo passed ;;
    77) rm "$log"; echo skipped ;;
    *) echo failed
       { echo "$2: exit $rc; repeat: (cd $build && LOAM_TEST_SEED=$4 LOAM_TEST_DIVISOR=$divisor $3)"
         grep -E 'ERROR|error:|FAILED|LINE|seed' "$log" | head -12 || tail -12 "$log"; } >&2 ;;
  esac
  exit 0
fi

[ -s "$build/seeded_tests.txt" ] || { echo "fuzz_seeds: no $build/seeded_tests.txt" >&2; exit 2; }
tests=$(cut -d' ' -f1 "$build/seeded_tests.txt")
[ $# = 0 ] || tests=$*
passed=0 failed=0
for name in $tests; do
  program=$(sed -n "s/^$name //p" "$build/seeded_tests.txt")
  [ -x "$program" ] || { echo "fuzz_seeds: no test $name" >&2; exit 2; }
  # 31 bits each, from the system's random numbers
  results=$(od -An -v -N$((seeds * 4)) -w4 -tu4 /dev/urandom | awk '{ print $1 % 2147483648 }' |
    xargs -P "${FUZZ_JOBS:-2}" -I SEED sh "$0" "$build" --one "$name" "$program" SEED)
  good=$(printf '%s\n' "$results" | grep -c passed || true)
  bad=$(printf '%s\n' "$results" | grep -c failed || true)
  left=$(printf '%s\n' "$results" | grep -c skipped || true)
  passed=$((passed + good)) failed=$((failed + bad))
  echo "$name: $good seeds passed, $bad failed$([ "$left" = 0 ] || echo ", $left skipped")"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
