#!/bin/sh
# bare_machine.sh [COMMAND...]: each shell command in a fresh clone of HEAD, on a Debian 12 of its own that has nothing
# else (debootstrap, minbase), so that neither what a machine happens to have nor what ran before hides anything.
# Without arguments: ./do test, which has no real model then, and ./do demo && ./do test, which has one.
# The network, the mirror and pip are as this machine's; needs root and 4 GB in TMPDIR (/tmp).  The systems see this
# machine's devices, but none of its files and processes, and are gone when the script ends, kill -9 aside.
# The last line is "N passed, N failed", by commands.
set -eu
suite=bookworm
say() { echo "bare_machine: $*" >&2; }

[ "$(id -u)" = 0 ] || { say "needs root"; exit 2; }
for tool in debootstrap git unshare; do
  command -v $tool >/dev/null || { say "needs $tool"; exit 2; }
done
unshare --mount --pid --fork true 2>/dev/null || { say "needs a machine on which root may mount"; exit 2; }
source=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
[ -z "$(git -C "$source" status --porcelain)" ] || say "what is not committed is not in the clones"

# Mounts and processes of the systems are in namespaces of their own: they end with unshare, and nothing of this machine
# is ever mounted in the folder that is removed.
child=
place=$(mktemp -d "${TMPDIR:-/tmp}/loam-bare.XXXXXX")
leave() {
  trap - EXIT HUP INT TERM
  if [ -n "$child" ]; then
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  rm -rf --one-file-system "$place" 2>/dev/null || { sleep 2; rm -rf --one-file-system "$place"; } # the last to die wrote
}
trap leave EXIT
trap 'exit 130' HUP INT TERM

# In the background, so that a signal is seen at once; --kill-child ends everything below when unshare ends.
apart() {
  unshare --mount --pid --fork --kill-child "$@" </dev/null &
  child=$!
  rc=0
  wait "$child" || rc=$?
  child=
  return $rc
}

copy() { # path: from this machine, where it has it
  if [ -e "$1" ]; then
    mkdir -p "$2$(dirname "$1")"
    cp -aL "$1" "$2$(dirname "$1")/"
  fi
}

# The mirror is this machine's, if its apt has one of this Debian, else debootstrap's own.
make_system() { # folder
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Release: $suite" 'Component: main' \
    'Origin: Debian' 2>/dev/null | head -n 1)
  apart debootstrap --variant=minbase "$suite" "$1" ${mirror:+"$mirror"} >"$place/log" 2>&1 ||
    { tail -n 5 "$place/log" >&2; say "debootstrap failed"; exit 1; }
  # How downloads go: proxies, time limits, authorities.
  { apt-config dump 2>/dev/null || true; } | grep '^Acquire::\(http\|https\|Retries\|Check\|Max-\|Force\)' | grep -vi detect \
    >"$1/etc/apt/apt.conf.d/99machine" || true
  for path in /etc/apt/auth.conf.d /etc/resolv.conf /etc/hosts /etc/pip.conf "${HOME:-/root}/.config/pip/pip.conf" \
    "${HOME:-/root}/.pip/pip.conf" /usr/local/share/ca-certificates; do
    copy "$path" "$1"
  done
}

# The command, as root, with nothing of the caller's environment but how to download.
run_command() { # folder, command
  git clone -q --no-hardlinks "$source" "$1/loam"
  env | grep -E '^(https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY|PIP_[A-Z_]*)=' >"$place/environment" || true
  set -- "$1" "$2" HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb
  while IFS= read -r variable; do set -- "$@" "$variable"; done <"$place/environment"
  apart sh -c 'set -e
    root=$1 command=$2; shift 2
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec env -i "$@" chroot "$root" sh -c "cd /loam
      $command"' bare "$@"
}

[ $# -gt 0 ] || set -- './do test' './do demo && ./do test'
say "Debian $suite, minbase, in $place"
make_system "$place/system"
passed=0 failed=0
for command in "$@"; do
  say "$command"
  began=$(date +%s) rc=0
  cp -a "$place/system" "$place/machine"
  run_command "$place/machine" "$command" || rc=$?
  rm -rf --one-file-system "$place/machine"
  if [ $rc = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  say "$command: exit code $rc after $(($(date +%s) - began)) s"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
