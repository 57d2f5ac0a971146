#!/bin/sh
# check_decisions.sh SOURCE_DIR: decisions that are cited ("decision 0042", [0042](...#0042-...)) are headings in
# docs/decisions, once each; links name the heading's page and its words; every heading in a page of a topic has a
# status and a row in the index.
set -eu
cd "$1/docs/decisions"
set -- *.md
cd ../..
git ls-files src include tests bench tools docs examples models '*.md' 2>/dev/null | grep -E '\.([ch]|cu|py|sh|md)$' |
  grep -v '^tests/.*/data/' | xargs grep -noE 'decisions? 0[0-9]{3}|[a-z0-9_./]*#0[0-9]{3}-[a-z0-9_-]+' |
  awk -v pages="$*" '
function complain(text) { print text; failed = 1 }
function slug(text) { text = tolower(text); gsub(/[^a-z0-9_ -]/, "", text); gsub(/ /, "-", text); return text }
BEGIN {
  count = split(pages, page, " ")
  for (i = 1; i <= count; i++) {
    path = "docs/decisions/" page[i]; number = ""
    while ((getline line < path) > 0) {
      if (page[i] == "README.md" && match(line, /^\| \[0[0-9][0-9][0-9]\]/)) listed[substr(line, 4, 4)] = 1
      else if (line ~ /^#+ 0[0-9][0-9][0-9]/) {
        if (number != "") complain(path ": " number " has no status")
        heading = line; sub(/^#+ /, "", heading); number = substr(heading, 1, 4)
        if (number in home) complain(path ": " number " is in " home[number] " too")
        home[number] = page[i]; anchor[number] = slug(heading)
        if (page[i] ~ /^0/) { number = ""; single[substr(heading, 1, 4)] = 1 }
      } else if (line ~ /^Status: /) number = ""
    }
    if (number != "") complain(path ": " number " has no status")
  }
  for (number in home)
    if (!(number in listed) && !(number in single)) complain("docs/decisions/README.md: no row of " number)
}
{
  split($0, part, ":"); place = part[1] ":" part[2]; cited = part[3]
  match(cited, /0[0-9][0-9][0-9]/); number = substr(cited, RSTART, 4)
  if (!(number in home)) { complain(place ": no decision " number " (docs/decisions/README.md)"); next }
  at = index(cited, "#")
  if (at == 0) next
  target = substr(cited, 1, at - 1); sub(/.*\//, "", target)
  if (target == "") { target = part[1]; sub(/.*\//, "", target) }
  if (target != home[number] || substr(cited, at + 1) != anchor[number])
    complain(place ": " number " is " home[number] "#" anchor[number])
}
END { exit failed }'
