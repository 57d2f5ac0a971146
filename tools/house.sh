#!/bin/sh
# house.sh [SOURCE_DIR]: how large the house is, beside what it is to become: rows of options, long parameter lists, large
# structs, lines, exported symbols.  Prints; never fails.
set -eu
cd "${1:-$(dirname "$0")/..}"

row() { printf '%-58s %7s  %s\n' "$1" "$2" "$3"; }

# Definitions in src with 7 parameters or more; kernels and CUDA apart.
long_lists() {
  find src -name '*.c' ! -path 'src/kernels/*' ! -path 'src/device/cuda/*' | xargs awk '
    FNR == 1 { text = "" }
    /^[a-z].*\(/ && !/^(typedef|extern|#|return|else|static const|struct [a-z_]+ \{)/ && text == "" { text = $0; if ($0 !~ /[{;]/) next }
    text != "" {
      if ($0 != text) text = text " " $0
      if (text ~ /;/ || length(text) > 1500) { text = ""; next }
      if (text !~ /\{/) next
      sub(/\{.*/, "", text); sub(/^[^(]*\(/, "", text); depth = 0; count = 1
      for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "(") depth++
        else if (c == ")") { if (depth == 0) break; depth-- }
        else if (c == "," && depth == 0) count++
      }
      if (count >= 7) total++
      text = ""
    }
    END { print total + 0 }'
}

# Structs of src with more than 20 members of their own, however they are declared.
large_structs() {
  find src -name '*.[ch]' ! -path 'src/kernels/*' | xargs awk '
    FNR == 1 { depth = 0 }
    { line = $0; gsub(/"[^"]*"/, "", line); gsub(/\/\*[^*]*\*\//, "", line) }
    depth == 0 && line ~ /^(static |typedef )?(const )?(struct|union)( [a-z_0-9]+)? \{$/ { depth = 1; members = 0; next }
    depth > 0 {
      if (line ~ /^ *(\/\*|\*)/) next
      opens = gsub(/\{/, "{", line); closes = gsub(/\}/, "}", line)
      if (depth == 1 && line ~ /;/ && closes == 0) { sub(/.*\)/, "", line); members += gsub(/[;,]/, "", line) }
      depth += opens - closes
      if (depth == 0 && members > 20) total++
      if (depth < 0) depth = 0
    }
    END { print total + 0 }'
}

lines() { git ls-files "$@" | grep -E '\.([ch]|cu)$' | xargs cat | wc -l; }

options=$(grep -c '{\.id = OPTION_' src/cli/option_table.c)
# Those of the selection are rows of two tables, the plan's are constants; axes are not counted.
settings=$(cat src/attention/select_options.c src/plan/axes.c |
  awk '/ (real_)?settings\[\] = \{/ { inside = 1; next } /^};/ { inside = 0 } inside && /^    \{"/ { n++ }
       !inside { n += gsub(/_name\[\] = "/, "") } END { print n + 0 }')
all=$(lines src)
cuda=$(lines src/device/cuda)
lab=$(lines src/lab)
row "rows of the option table" "$options" "goal: at most 96"
row "names of --set" "$settings" "goal: at most 20"
row "functions with 7 parameters or more, without kernels, CUDA" "$(long_lists)" "goal: at most 45"
row "structs with more than 20 members" "$(large_structs)" "goal: at most 12"
row "lines of src" "$all" ""
row "  without CUDA ($cuda) and the lab ($lab)" "$((all - cuda - lab))" "goal: at most 78,000"
row "functions of the library" "$(grep -oE '\bloam_[a-z_0-9]+\(' include/loam.h | sort -u | wc -l)" "goal: as they are"
