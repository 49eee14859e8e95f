#!/usr/bin/env bash
# plugin_checksum: installs the built plugin for the gpu suites and remembers its checksum; when
# they have ended, says whether the file is still the one that was built.
#   plugin_checksum.sh install CMAKE BUILD_FOLDER PREFIX BUILT INSTALLED
#   plugin_checksum.sh compare BUILT INSTALLED
set -euo pipefail

checksum() { sha256sum "$1" | cut -d ' ' -f 1; }

if [[ $1 == install ]]; then
    cmake=$2 folder=$3 prefix=$4 built=$5 installed=$6
    "$cmake" "-DCMAKE_INSTALL_PREFIX=$prefix" -P "$folder/cmake_install.cmake"
    checksum "$installed" >"$installed.sha256"
else
    built=$2 installed=$3
fi
now=$(checksum "$installed")
echo "built     $(checksum "$built")"
echo "before    $(cat "$installed.sha256")"
echo "installed $now"
[[ $now == "$(checksum "$built")" && $now == "$(cat "$installed.sha256")" ]]
