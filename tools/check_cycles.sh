#!/bin/sh
# check_cycles.sh SOURCE_DIR BUILD_DIR: files of one folder do not need each other in a cycle.  Read from the object
# files of a build: file A needs file B where A refers to a function or an object that B defines.  A lower file calls
# back through a function that the upper one sets.
set -eu
failed=0
cd "$2"
for folder in src/*/; do
  folder=${folder%/}
  objects=
  for object in $(find "$folder" -name '*.c.o'); do # without those of sources that are gone
    source=${object##*.dir/}
    [ ! -f "$1/$folder/${source%.o}" ] || objects="$objects $object"
  done
  [ -n "$objects" ] || continue
  cycle=$(${NM:-nm} -A -g $objects | awk '
    { file = substr($0, 1, index($0, ".c.o:") + 1); sub(/.*\.dir\//, "", file); symbol = $NF }
    $(NF - 1) == "U" { needs[file, symbol] = 1; next }
    { owner[symbol] = file }
    END { for (pair in needs) { split(pair, part, SUBSEP)
            if (part[2] in owner && owner[part[2]] != part[1]) print part[1], owner[part[2]] } }' |
    sort | tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^-].*\.c\)$/\1/p' | sort -u | tr '\n' ' ')
  [ -z "$cycle" ] || { echo "$folder: these files need each other: $cycle"; failed=1; }
done
[ "$failed" = 0 ] || { echo "check_cycles: files that need each other" >&2; exit 1; }
