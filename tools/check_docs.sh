#!/bin/sh
# check_docs.sh SOURCE_DIR: what the documents name is there.  Every file of bench/results is cited by its whole name, and
# every one that is cited exists; every file, function, type or constant that ARCHITECTURE.md names is in the tree; every
# relative link of a document leads to a file.
set -eu
cd "$1"
failed=0
complain() { echo "$1"; failed=1; }

cited=$(git grep -ohE '[0-9]{4}-[0-9]{2}-[0-9]{2}-[A-Za-z0-9_.-]+\.csv' -- ':!bench/results' | sort -u)
there=$(git ls-files bench/results | sed 's|.*/||' | sort -u)
for name in $(printf '%s\n%s\n' "$there" "$cited" | sort | uniq -u); do
  if [ -f "bench/results/$name" ]; then complain "bench/results/$name: nothing cites it"
  else complain "$(git grep -lF "$name" -- ':!bench/results' | head -1): $name is not in bench/results"; fi
done

tree=$(git ls-files)
for name in $(grep -oE '`[A-Za-z_./<>]+`' ARCHITECTURE.md | tr -d '`' | sort -u); do
  case $name in
    ../*) [ -e "src/base/$name" ] || [ -e "include/${name##*/}" ] || complain "ARCHITECTURE.md: no $name" ;;
    _*) printf "%s\n" "$tree" | grep -qE "$name\\.c$" || complain "ARCHITECTURE.md: no file ends in $name" ;;
    */*|*.c|*.h|*.sh|*.md) printf '%s\n' "$tree" | grep -qE "(^|/)${name%/}(/|$)" || complain "ARCHITECTURE.md: no file $name" ;;
    *) git grep -qwF -- "$name" -- src include tests cmake CMakeLists.txt || complain "ARCHITECTURE.md: nothing is named $name" ;;
  esac
done

links=$(git ls-files '*.md' | xargs grep -HoE '\]\([^)#: ]+[)#]' | sed -E 's/\]\(([^)#]*)[)#]$/\1/' | sort -u)
for link in $links; do
  [ -e "$(dirname "${link%%:*}")/${link#*:}" ] || complain "${link%%:*}: no ${link#*:}"
done
exit $failed
