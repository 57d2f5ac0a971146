#!/bin/sh
# test_install.sh PART PREFIX SOURCE_DIR CC CXX: what `cmake --install` brought to PREFIX, as somebody who has nothing
# else of loam uses it.  Exit 77: skipped, with the reason.
set -eu
part=$1 prefix=$2 source=$3 cc=$4 cxx=$5
work=$prefix/../work-$part
model=$prefix/share/loam/models/loam-nano.gguf
text="The report of the first day says that"
fail() { echo "test_install: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

pc=$(find "$prefix" -name loam.pc)
[ -f "$pc" ] || fail "no loam.pc in $prefix"
export PKG_CONFIG_PATH="$(dirname "$pc")"
libdir=$(pkg-config --variable=libdir loam)
export LD_LIBRARY_PATH="$libdir"
flags="-O1 -Wall -Wextra -Werror $(pkg-config --cflags loam)"
rm -rf "$work"; mkdir -p "$work"

# What the program says to the same tokens: the library must say the same.
expect() { # file: the greedy answer to $1
  ids=$("$prefix/bin/loam" tokenize -m "$model" -p "$1" --bos --json | sed 's/.*\[//; s/\].*//')
  "$prefix/bin/loam" run -m "$model" --ids "$ids" -n 32 --temp 0 -c 4096 -q 2>/dev/null
}

same() { # what found expected
  [ "$2" = "$3" ] || fail "$1: found '$2', expected '$3'"
}

build_c() { # name, libraries: an example as C
  [ "$(wc -l <"$source/examples/$1.c")" -le 60 ] || fail "examples/$1.c has more than 60 lines"
  name=$1; shift
  $cc -std=c11 -Wpedantic $flags "$source/examples/$name.c" "$@" -o "$work/$name" || fail "examples/$name.c"
}

case $part in
files)
  for query in --cflags --libs; do # nothing else of pkg-config's needs to be there
    PKG_CONFIG_LIBDIR=$PKG_CONFIG_PATH PKG_CONFIG_PATH= pkg-config $query loam >/dev/null || fail "pkg-config $query loam alone"
  done
  [ -f "$prefix/include/loam.h" ] && [ -f "$model" ] && [ -f "$libdir/libloam.a" ] || fail "a file is missing"
  for file in man/man1/loam.1 bash-completion/completions/loam zsh/site-functions/_loam fish/vendor_completions.d/loam.fish; do
    [ -s "$prefix/share/$file" ] || fail "no share/$file"
  done
  [ "$(pkg-config --variable=models loam)/loam-nano.gguf" -ef "$model" ] || fail "models of loam.pc"
  for library in "-D $libdir/libloam.so" "-g $libdir/libloam.a"; do
    # shellcheck disable=SC2086
    nm --defined-only $library >"$work/names" # LOAM_0: the version of the names
    others=$(awk 'NF == 3 && $3 !~ /^loam_/ && $3 != "LOAM_0" { print $3 }' "$work/names")
    [ -z "$others" ] || fail "$library shows $others"
    for name in $(grep -o 'loam_[a-z_]*(' "$prefix/include/loam.h" | tr -d '(' | sort -u); do
      grep -q " T $name\(@\|\$\)" "$work/names" || fail "$library lacks $name"
    done
    [ "$(grep -c ' T loam_' "$work/names")" -ge 25 ] || fail "$library: $(cat "$work/names")"
  done ;;
c)
  build_c complete $(pkg-config --libs loam)
  same complete "$("$work/complete" "$model" "$text")" "$(expect "$text")"
  build_c batch $(pkg-config --libs loam)
  same batch "$("$work/batch" "$model" "$text" "Chapter two")" "$(expect "$text"; expect "Chapter two")"
  if "$work/complete" "$work/none.gguf" x 2>"$work/said"; then fail "a model that is not there"; fi
  grep -q none.gguf "$work/said" || fail "a model that is not there: $(cat "$work/said")"
  build_c chat_document $(pkg-config --libs loam)
  head -c 3000 "$source/ARCHITECTURE.md" >"$work/document"
  ask() { printf 'What is it?\nAnd why?\n' | "$work/chat_document" "$model" "$work/kv" "$work/document" mistral-v1; }
  ask >"$work/first" 2>"$work/first.did"
  ask >"$work/second" 2>"$work/second.did"
  cmp "$work/first" "$work/second" || fail "another answer from the saved document"
  grep -q "tokens read, 0 taken" "$work/first.did" || fail "first run: $(cat "$work/first.did")"
  reused=$(sed -n 's/.*read, \([0-9]*\) taken.*/\1/p' "$work/second.did")
  [ "$reused" -gt 300 ] || fail "second run: $(cat "$work/second.did")"
  "$prefix/bin/loam" ls --kv-disk "$work/kv" | grep -q document || fail "loam ls does not show the document" ;;
static)
  build_c complete "$libdir/libloam.a" $(pkg-config --static --libs loam | sed 's/-lloam//')
  same "complete, linked statically" "$(LD_LIBRARY_PATH= "$work/complete" "$model" "$text")" "$(expect "$text")" ;;
cpp)
  command -v "$cxx" >/dev/null || skip "there is no $cxx"
  $cxx -std=c++17 -Wpedantic $flags "$source/examples/complete.cpp" $(pkg-config --libs loam) -o "$work/complete"
  same "C++" "$("$work/complete" "$model" "$text")" "$(expect "$text")" ;;
python)
  command -v python3 >/dev/null || skip "there is no python3"
  python3 -c 'import ctypes' 2>/dev/null || skip "python3 has no ctypes"
  PYTHONPATH=$(pkg-config --variable=python loam); export PYTHONPATH
  same Python "$(env -u LD_LIBRARY_PATH python3 "$source/examples/complete.py" "$model" "$text")" "$(expect "$text")"
  if python3 "$source/examples/complete.py" "$work/none.gguf" x 2>"$work/said"; then fail "a model that is not there"; fi
  grep -q none.gguf "$work/said" || fail "a model that is not there: $(cat "$work/said")"
  python3 "$source/tests/install/use_loam_py.py" "$model" "$work" || fail "loam.py" ;;
*) fail "no part $part" ;;
esac
