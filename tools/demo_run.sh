# demo_run.sh: what the parts of the demo share; read by them, with loam set to the program.
PATH=$(realpath "$(dirname "$loam")"):$PATH
export PATH
title() { printf '\n== %s\n' "$*"; }

# The very command, as one could type it, then what it does.
run() {
  printf '\n$'
  for word in "$@"; do
    case $word in
      *[!A-Za-z0-9_./,:=+-]*) printf ' "%s"' "$word" ;;
      *) printf ' %s' "$word" ;;
    esac
  done
  printf '\n'
  "$@"
}
