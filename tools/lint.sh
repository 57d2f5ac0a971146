#!/bin/sh
# lint.sh: what a compiler does not check.  Run by `./do lint`.
set -eu
cd "$(dirname "$0")/.."
sh tools/check_includes.sh .
sh tools/check_style.sh .
sh tools/check_decisions.sh .
sh tools/check_docs.sh .
