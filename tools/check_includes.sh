#!/bin/sh
# check_includes.sh SOURCE_DIR: who includes whom.  A folder of src/ may include only
# itself and what its CMakeLists.txt declares with DEPENDS; includes are written
# from src/, never with "../".  A header named *_internal.h stays in its folder; a
# method of the lab has its part of the cpu device.
set -eu
cd "$1"
failed=0
for list in src/*/CMakeLists.txt; do
  folder=$(basename "$(dirname "$list")")
  allowed=" $folder $(sed -n 's/^loam_library([a-z]* *DEPENDS \([a-z ]*\).*/\1/p' "$list" | sed 's/SYSTEM.*//') "
  found=$(find "src/$folder" -name '*.[ch]' -o -name '*.cu' | xargs grep -n '^#include "' 2>/dev/null || true)
  [ -n "$found" ] || continue
  bad=$(printf '%s\n' "$found" | awk -v allowed="$allowed" -v folder="$folder" '
    { split($0, part, "\""); path = part[2]; n = split(path, piece, "/")
      if (path == "loam.h") next
      if (path ~ /^\.\./ || n < 2) { print $0 "   (write it from src/)"; next }
      if (index(allowed, " " piece[1] " ") == 0) print $0 "   (src/" folder " does not declare " piece[1] ")"
      else if (folder == "lab" && path ~ /^device\/cpu\//) next
      else if (path ~ /_internal\.h$/ && piece[1] != folder) print $0 "   (private to src/" piece[1] ")" }')
  if [ -n "$bad" ]; then printf '%s\n' "$bad"; failed=1; fi
done
[ "$failed" = 0 ] || { echo "check_includes: includes that the build does not declare" >&2; exit 1; }
